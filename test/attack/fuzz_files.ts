/**
 * A process that reads damaged files, for the fuzzer: for every `{seed, index}` that it is sent it sends `{ms, rss}`,
 * and `fault` for an error that is not one of ours, or for a checkpoint that is gone.
 */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { validateFile } from "../../src/cluster/convert/inspect/validate.ts";
import { parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { ggufFolder } from "../../src/engine/model/files/gguf/folder.ts";
import { readFolderJson } from "../../src/engine/model/files/reader.ts";
import { openSafetensors } from "../../src/engine/model/files/safetensors.ts";
import { byteTokenizer, characterTokenizer, createTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { ConfigError, UnsupportedError } from "../../src/leaves/errors.ts";
import { readState } from "../../src/serve/tinker/checkpoint/state_folder.ts";
import { readYaml } from "../../src/train/config/yaml/read.ts";
import { renderPage } from "../../src/train/log/page/render.ts";
import { RunFolder } from "../../src/train/log/page/run_folder.ts";
import { packagedText } from "../../src/train/run/files.ts";
import { bytesReader, smallGguf, tinyModel } from "../fixtures/gguf/container.ts";
import { Chance, mutateBytes, mutateJson, mutateText } from "./mutate.ts";

const root = mkdtempSync(join(tmpdir(), "grpu-fuzz-"));
process.on("exit", () => rmSync(root, { recursive: true, force: true }));

const SESSION = "01234567-89ab-cdef-0123-456789abcdef";
const RUN = `${SESSION}:train:0`;
const time = "2026-01-01T00:00:00.000Z";
const RUN_RECORD = {
  id: RUN,
  session: SESSION,
  baseModel: "toy",
  config: { rank: 4, seed: 1, trainUnembed: true, trainMlp: true, trainAttn: true },
  userMetadata: { a: 1 },
  created: time,
  lastRequest: time,
};
const CHECKPOINT = { run: RUN, kind: "weights", name: "kept", time, isPublic: false, bytes: 3, step: 1 };

/** The server's records of what it keeps. Whatever they hold, the weights stay. */
async function records(chance: Chance): Promise<void> {
  const dir = join(root, "state");
  rmSync(dir, { recursive: true, force: true });
  const kept = join(dir, SESSION, "train-0", "weights", "kept");
  mkdirSync(kept, { recursive: true });
  writeFileSync(join(kept, "adapter_model.safetensors"), "abc");
  const damaged = (value: object) =>
    chance.is(0.5) ? mutateText(JSON.stringify(value), chance) : JSON.stringify(mutateJson(value, chance));
  const which = chance.int(3);
  writeFileSync(join(kept, "checkpoint.json"), which === 0 ? JSON.stringify(CHECKPOINT) : damaged(CHECKPOINT));
  writeFileSync(
    join(dir, SESSION, "train-0", "run.json"),
    which === 1 ? JSON.stringify(RUN_RECORD) : damaged(RUN_RECORD),
  );
  const { runs, records } = await readState(dir);
  JSON.stringify([[...runs], [...records]]);
  const files = readdirSync(dir, { recursive: true }).map(String);
  if (!files.some((file) => file.endsWith("adapter_model.safetensors"))) throw new Error("a checkpoint is gone");
}

const METRICS = '{"phase":"train","step":1,"reward/a/mean":0.5,"actor/entropy":1}\n';
const SAMPLES = '{"step":1,"task":"t","prompt":"p","response":"r","reward":1,"is_correct":true}\n';
const GROUPS = '{"step":1,"groups":[{"task":"t","name":"a","rewards":[0,1,null],"solved":1}]}\n';
const FACTS = '{"title":"t","subtitle":"s","total_steps":5,"started":"2026-01-01T00:00:00Z"}';

/** The files of a run, which its page shows. */
function metrics(chance: Chance): void {
  const dir = join(root, "run");
  mkdirSync(dir, { recursive: true });
  const put = (name: string, text: string) =>
    writeFileSync(join(dir, name), chance.is(0.6) ? mutateText(text, chance) : text);
  put("metrics.jsonl", METRICS.repeat(3));
  put("samples.jsonl", SAMPLES.repeat(2));
  put("groups.jsonl", GROUPS.repeat(2));
  put("run.json", FACTS);
  put("config.yaml", CONFIG);
  const run = new RunFolder(dir, { settingsOf: (text) => ({ text }) });
  run.poll();
  renderPage([run.data()], { isLive: true });
}

/** A header and its bytes. */
const TENSORS = (() => {
  const header = Buffer.from(
    JSON.stringify({
      __metadata__: { format: "pt" },
      a: { dtype: "F32", shape: [2, 2], data_offsets: [0, 16] },
      b: { dtype: "BF16", shape: [4], data_offsets: [16, 24] },
    }),
  );
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, Buffer.alloc(24)]);
})();

async function safetensors(chance: Chance): Promise<void> {
  const bytes = Buffer.from(mutateBytes(TENSORS, chance));
  const read = async (offset: number, length: number) => Uint8Array.from(bytes.subarray(offset, offset + length));
  const file = await openSafetensors({ size: bytes.length, name: "x.safetensors", read });
  for (const name of file.tensors.keys()) await file.read(name);
}

const GGUF = Promise.all([smallGguf(), tinyModel()]);

/** The container, and what a model's folder would hold. */
async function gguf(chance: Chance): Promise<void> {
  const bytes = mutateBytes(chance.pick(await GGUF), chance);
  const folder = await ggufFolder([bytesReader(bytes)], { name: "x.gguf" });
  parseModelConfig(await readFolderJson(folder, "config.json"));
  const tokenizer = await readFolderJson(folder, "tokenizer.json");
  if (tokenizer)
    createTokenizer({ tokenizer, config: await readFolderJson(folder, "tokenizer_config.json") }).encode("ab a");
  const weights = await folder.open("model.safetensors");
  await weights?.read(0, weights.size);
}

const TOKENIZERS = [characterTokenizer("abc +=0123"), byteTokenizer()].map((it) => it.files());

/** Templates and all: whoever brings a tokenizer brings code in its template, which is a matter of its own. */
function tokenizer(chance: Chance): void {
  const files = chance.pick(TOKENIZERS);
  const damaged = (name: string) => {
    const value = JSON.parse(files[name] ?? "{}");
    return chance.is(0.6) ? mutateJson(value, chance) : value;
  };
  const made = createTokenizer({
    tokenizer: damaged("tokenizer.json"),
    config: damaged("tokenizer_config.json"),
  });
  // A damaged vocabulary may lack what its merges make.
  made.decode(made.encode("1+1=").filter(Number.isInteger));
}

const CONFIG = `rllm:
  rollout: {n: 4, temperature: 1.0}
training: &t
  seed: 1
  lr: 1e-5
other: {<<: *t, list: [1, 2, {a: b}]}
`;

function yaml(chance: Chance): void {
  const text = mutateText(CONFIG, chance);
  readYaml(text, "x.yaml");
  validateFile({ name: "x.yaml", text }, { readConfig: packagedText, env: {} });
}

export const KINDS = { records, metrics, safetensors, gguf, tokenizer, yaml } as const;

async function runCase(seed: number, index: number): Promise<{ kind: string; fault?: string }> {
  const chance = new Chance(seed, index);
  const names = Object.keys(KINDS) as (keyof typeof KINDS)[];
  const kind = names[index % names.length]!;
  try {
    await KINDS[kind](chance);
  } catch (error) {
    if (error instanceof ConfigError || error instanceof UnsupportedError) return { kind };
    return { kind, fault: error instanceof Error ? String(error.stack) : String(error) };
  }
  return { kind };
}

process.on("message", async ({ seed, from, to }: { seed: number; from: number; to: number }) => {
  const faults: string[] = [];
  let [worst, worstAt] = [0, from];
  for (let index = from; index < to; index++) {
    const [wall, cpu] = [performance.now(), process.cpuUsage()];
    const { kind, fault } = await runCase(seed, index);
    const worked = process.cpuUsage(cpu);
    const ms = Math.min(performance.now() - wall, (worked.user + worked.system) / 1000);
    if (ms > worst) [worst, worstAt] = [ms, index];
    if (fault !== undefined) faults.push(`case ${index} (${kind}): ${fault}`);
  }
  process.send?.({ faults, worst, worstAt, rss: process.memoryUsage.rss() });
});
process.on("disconnect", () => process.exit(0));
process.send?.("ready");
