/** Folders of `grpu reward-model`, scored by transformers and PEFT. */
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import { parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { byteTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../src/engine/model/lora.ts";
import { saveModelFolder } from "../../src/engine/model/save_model.ts";
import { offsetsOf } from "../../src/engine/packing/offsets.ts";
import { LocalRewardModel } from "../../src/train/backend/local/reward_model.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { publishedConfig } from "../fixtures/published.ts";
import { PYTHON } from "./reference.ts";

const device = new CpuDevice();
afterAll(() => device.destroy());
const root = temporaryFolder("scored");
const SEQUENCES = [[72, 101, 108, 108, 111], [9], [257, 30, 31, 32, 33, 34, 35, 36]];
const TARGETS = [...ATTENTION_TARGETS, ...MLP_TARGETS];
const STEP = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 0 };

/** A published family's model of small matrices. */
async function baseFolder(name: string): Promise<string> {
  const small = { hidden_size: 32, intermediate_size: 48, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8 };
  const ids = {
    vocab_size: 258,
    bos_token_id: null,
    eos_token_id: 257,
    pad_token_id: 256,
    max_position_embeddings: 64,
  };
  const config = parseModelConfig({ ...publishedConfig(name, 2), ...small, ...ids });
  const folder = join(root, name);
  await saveModelFolder(folder, {
    model: LanguageModel.create(device, config, { seed: 5 }),
    tokenizer: byteTokenizer(),
  });
  return folder;
}

/** A reward model after three steps, its folder and its scores. */
async function trained(base: string, out: string, lora?: { rank: number; alpha: number; targets: typeof TARGETS }) {
  const model = await LocalRewardModel.open(base, { device, ...(lora && { lora }) });
  const rows = {
    tokens: Uint32Array.from(SEQUENCES.flat()),
    offsets: offsetsOf(SEQUENCES.map(({ length }) => length)),
  };
  for (let step = 0; step < 3; step++) {
    await model.backward(rows, Float32Array.of(-1, 0.5, 0.25));
    await model.optimStep(STEP);
  }
  await model.save(out);
  return model.scores(rows);
}

function read(requests: readonly { model: string; adapter?: string }[]) {
  const script = fileURLToPath(new URL("scored.py", import.meta.url));
  const input = JSON.stringify(requests.map((request) => ({ ...request, sequences: SEQUENCES })));
  const { status, stdout, stderr } = spawnSync(PYTHON!, [script], { input, encoding: "utf8", maxBuffer: 2 ** 26 });
  expect(status, stderr).toBe(0);
  return JSON.parse(stdout) as { scores: number[]; fresh: string[] }[];
}

describe.skipIf(!PYTHON).each(["Qwen3-0.6B", "SmolLM2-135M"])("a reward model of %s", (name) => {
  test("has our scores in transformers, and as an adapter in PEFT", async () => {
    const base = await baseFolder(name);
    const [whole, adapter] = [`${base}-whole`, `${base}-adapter`];
    const ours = [await trained(base, whole), await trained(base, adapter, { rank: 4, alpha: 8, targets: TARGETS })];
    const theirs = read([{ model: whole }, { model: base, adapter }]);
    for (const [i, { scores }] of theirs.entries()) {
      // Far enough apart that a head left at its start would be seen.
      expect(Math.max(...scores) - Math.min(...scores)).toBeGreaterThan(0.1);
      for (const [j, score] of scores.entries()) expect(score).toBeCloseTo(ours[i]![j]!, 4);
    }
    expect(theirs[0]!.fresh).toEqual([]);
  });
});
