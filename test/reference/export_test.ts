/** Folders of `grpu export`, read by transformers and PEFT. */
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import { exportFolder } from "../../src/engine/model/export.ts";
import { parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { byteTokenizer, withChatTemplate } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../src/engine/model/lora.ts";
import { loadModel, openModel } from "../../src/engine/model/open_model.ts";
import { saveAdapterFolder, saveModelFolder } from "../../src/engine/model/save_model.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { expectClose, floats } from "../fixtures/numbers.ts";
import { publishedConfig } from "../fixtures/published.ts";
import { PYTHON } from "./reference.ts";

const device = new CpuDevice();
afterAll(() => device.destroy());
const root = temporaryFolder("exported");
const TOKENS = [72, 101, 108, 108, 111, 257, 9];
const TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}";

interface Read {
  readonly logits: readonly number[];
  readonly ids: readonly number[];
  readonly chat: string;
  readonly eos: readonly number[] | null;
}

interface Request {
  readonly model: string;
  readonly adapter?: string;
  readonly generation?: boolean;
}

/** What Python reads, in one process, because it starts slowly. */
function read(requests: readonly Request[]): Read[] {
  const script = fileURLToPath(new URL("exported.py", import.meta.url));
  const input = JSON.stringify(requests.map((request) => ({ ...request, tokens: TOKENS })));
  const { status, stdout, stderr } = spawnSync(PYTHON!, [script], { input, encoding: "utf8", maxBuffer: 2 ** 28 });
  expect(status, stderr).toBe(0);
  return JSON.parse(stdout) as Read[];
}

/** A published family's model of small matrices, and an adapter that changes it. */
async function folders(name: string) {
  const raw = publishedConfig(name, 2);
  const small = { hidden_size: 32, intermediate_size: 48, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8 };
  const ids = {
    vocab_size: 258,
    bos_token_id: null,
    eos_token_id: 257,
    pad_token_id: 256,
    max_position_embeddings: 64,
  };
  const config = parseModelConfig({ ...raw, ...small, ...ids });
  const [base, adapter] = [join(root, `${name}-base`), join(root, `${name}-adapter`)];
  const tokenizer = withChatTemplate(byteTokenizer(), TEMPLATE);
  await saveModelFolder(base, { model: LanguageModel.create(device, config, { seed: 5 }), tokenizer, dtype: "BF16" });
  writeFileSync(join(base, "generation_config.json"), '{"eos_token_id": [257, 256]}');
  const opened = await openModel(base);
  const targets = [...ATTENTION_TARGETS, ...MLP_TARGETS];
  const model = await loadModel(device, opened, { lora: { rank: 4, alpha: 8, targets } });
  for (const { name: factor, rows, columns } of model.trainable.layout.entries.values())
    if (factor.endsWith(".B")) model.trainable.write(factor, floats(rows * columns, rows + columns, 0.2));
  model.refresh();
  await saveAdapterFolder(adapter, { model, tokenizer, base: opened.mark });
  return { base, adapter, logprobs: await nextLogprobs(model) };
}

/** Log-probability of every token after {@link TOKENS}. */
async function nextLogprobs(model: LanguageModel): Promise<Float32Array> {
  const { vocabSize } = model.config;
  const rows = Array.from({ length: vocabSize }, (_, id) => [...TOKENS, id]);
  const tokens = Uint32Array.from(rows.flat());
  const offsets = Uint32Array.from({ length: vocabSize + 1 }, (_, i) => i * (TOKENS.length + 1));
  const { logprobs } = await model.logprobs({ tokens, offsets }, { policy: "current", temperature: 1 });
  return Float32Array.from({ length: vocabSize }, (_, id) => logprobs[(id + 1) * (TOKENS.length + 1) - 1]!);
}

function logSoftmax(logits: readonly number[]): Float32Array {
  const most = Math.max(...logits);
  const total = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0)) + most;
  return Float32Array.from(logits, (logit) => logit - total);
}

const FAMILIES = ["SmolLM2-135M", "Qwen2.5-0.5B", "Qwen3-0.6B", "Llama-3.2-1B"];

describe.skipIf(!PYTHON)("what grpu export writes", () => {
  /** By family: the merged folder in both types, the adapter on its base, and the base alone, as Python reads them. */
  const found = new Map<string, { logprobs: Float32Array; reads: readonly Read[] }>();
  beforeAll(async () => {
    const made = await Promise.all(FAMILIES.map(exported));
    const reads = read(made.flatMap(({ requests }) => requests));
    made.forEach(({ logprobs }, i) => {
      found.set(FAMILIES[i]!, { logprobs, reads: reads.slice(4 * i, 4 * i + 4) });
    });
  });

  async function exported(name: string): Promise<{ logprobs: Float32Array; requests: Request[] }> {
    const { base, adapter, logprobs } = await folders(name);
    const place = (what: string) => join(root, `${name}-${what}`);
    await exportFolder(adapter, { out: place("merged"), merge: true, dtype: "float32", maxShardBytes: 40_000 });
    await exportFolder(adapter, { out: place("rounded"), merge: true });
    await exportFolder(adapter, { out: place("alone") });
    const whole = { model: place("merged"), generation: true };
    return {
      logprobs,
      requests: [whole, { model: place("rounded") }, { model: base, adapter: place("alone") }, { model: base }],
    };
  }

  test.each(FAMILIES)("%s: transformers and PEFT give our log-probs", (name) => {
    const { logprobs, reads } = found.get(name)!;
    const [merged, rounded, beside, plain] = reads.map(({ logits }) => logSoftmax(logits));
    expectClose(merged!, logprobs, { relative: 0, absolute: 2e-4 }, "merged");
    expectClose(rounded!, logprobs, { relative: 0, absolute: 0.05 }, "merged in bfloat16");
    expectClose(beside!, logprobs, { relative: 0, absolute: 2e-4 }, "adapter");
    // The test can fail: without the adapter the figures are others.
    expect(Math.max(...plain!.map((value, i) => Math.abs(value - logprobs[i]!)))).toBeGreaterThan(0.1);
  });

  test.each(FAMILIES)("%s: the tokenizer, the template and the stop tokens go along", (name) => {
    const [merged, , beside] = found.get(name)!.reads;
    expect(merged).toMatchObject({ ids: [97, 32, 98], chat: "<user>hi", eos: [257, 256] });
    expect(beside).toMatchObject({ ids: [97, 32, 98], chat: "<user>hi" });
  });
});
