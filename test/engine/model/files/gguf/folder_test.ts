/** Models written as GGUF and opened again: weights, configuration and tokens are those of the folder. */
import { existsSync, readdirSync, renameSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../../../../src/engine/compute/cpu.ts";
import { exportFolder, importGguf } from "../../../../../src/engine/model/export.ts";
import { baseNameOf } from "../../../../../src/engine/model/files/base_name.ts";
import { parseModelConfig } from "../../../../../src/engine/model/files/config_json.ts";
import { ggufFolder } from "../../../../../src/engine/model/files/gguf/folder.ts";
import { readFolderJson } from "../../../../../src/engine/model/files/reader.ts";
import type { GgufValue } from "../../../../../src/engine/model/gguf/container.ts";
import { LanguageModel } from "../../../../../src/engine/model/language_model.ts";
import { loadModel, openModel } from "../../../../../src/engine/model/open_model.ts";
import { saveModelFolder } from "../../../../../src/engine/model/save_model.ts";
import { grpu } from "../../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../../fixtures/folder.ts";
import { bytesReader, tinyModel } from "../../../../fixtures/gguf/container.ts";
import { publishedConfig } from "../../../../fixtures/published.ts";

const dir = temporaryFolder("gguf-read");
const device = new CpuDevice();
afterAll(() => device.destroy());

const SMALL = {
  ...{ hidden_size: 64, intermediate_size: 96, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 32 },
  ...{ vocab_size: 9, bos_token_id: 7, eos_token_id: 8, pad_token_id: null, torch_dtype: "float32" },
};
const SPECIAL = ["<s>", "</s>"].map((content, i) => ({
  ...{ id: 7 + i, content, special: true, single_word: false, lstrip: false, rstrip: false, normalized: false },
}));
const LLAMA3 =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const byteLevel = (use_regex: boolean) => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: true,
  use_regex,
});
const split = (regex: string) => ({
  type: "Sequence",
  pretokenizers: [{ type: "Split", pattern: { Regex: regex }, behavior: "Isolated", invert: false }, byteLevel(false)],
});
const bytes = (pre_tokenizer: object, more: object = {}) => ({
  version: "1.0",
  added_tokens: SPECIAL,
  normalizer: null,
  pre_tokenizer,
  post_processor: {
    type: "TemplateProcessing",
    single: [{ Sequence: { id: "A", type_id: 0 } }],
    pair: [],
    special_tokens: {},
  },
  decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: {
    ...{ type: "BPE", vocab: { a: 0, b: 1, ab: 2, Ġ: 3, "1": 4, Ġab: 5, "11": 6 } },
    merges: [
      ["a", "b"],
      ["Ġ", "ab"],
      ["1", "1"],
    ],
  },
  ...more,
});
const TOKENIZERS = {
  "gpt-2": bytes(byteLevel(true)),
  smollm: bytes({ type: "Sequence", pretokenizers: [{ type: "Digits", individual_digits: true }, byteLevel(true)] }),
  "llama-bpe": bytes(split(LLAMA3)),
  qwen2: bytes(split(LLAMA3.replace("{1,3}", "")), { normalizer: { type: "NFC" } }),
};

async function folderOf(name: string, { config, tokenizer }: { config: object; tokenizer: object }): Promise<string> {
  const folder = join(dir, name);
  const parsed = parseModelConfig({ ...config, ...SMALL });
  const model = LanguageModel.create(device, parsed, { seed: 3 });
  await saveModelFolder(folder, { model });
  model.release();
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
  const settings = { bos_token: "<s>", eos_token: "</s>", chat_template: "{{ messages[0].content }}" };
  writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify(settings));
  return folder;
}

const FAMILIES: readonly (readonly [string, object, keyof typeof TOKENIZERS])[] = [
  ["Llama-3.2-1B", publishedConfig("Llama-3.2-1B", 2), "llama-bpe"],
  ["SmolLM2-135M", publishedConfig("SmolLM2-135M", 2), "smollm"],
  ["Qwen2.5-0.5B", publishedConfig("Qwen2.5-0.5B", 2), "qwen2"],
  ["Qwen3-0.6B", publishedConfig("Qwen3-0.6B", 2), "qwen2"],
  ["gemma-3-270m", { ...publishedConfig("gemma-3-270m", 6), query_pre_attn_scalar: 32 }, "gpt-2"],
];

describe.each(FAMILIES)("%s", (name, config, pre) => {
  test.each(["f32", "bf16", "f16", "q8_0"] as const)("as %s is the model that was written", async (form) => {
    const source = join(dir, name);
    const folder = existsSync(source) ? source : await folderOf(name, { config, tokenizer: TOKENIZERS[pre] });
    const out = join(dir, `${name}-${form}`);
    await exportFolder(folder, { out, gguf: form });
    const [own, read] = [await openModel(folder), await openModel(out)];
    expect(read.files.config).toEqual(own.files.config);
    expect(read.tokenizer!.chatTemplate).toBe(own.tokenizer!.chatTemplate);
    for (const text of ["ab 1111", "<s>ab ab</s>", "ba  ab1"])
      expect(read.tokenizer!.encode(text), text).toEqual(own.tokenizer!.encode(text));
    // What 16 or 8 bits leave of a weight of size 1 or so.
    const most = { f32: 0, bf16: 2 ** -6, f16: 2 ** -9, q8_0: 2 ** -4 }[form];
    for (const tensor of own.files.tensors.keys()) {
      if (tensor === "lm_head.weight" && own.files.config.tied) continue;
      const [a, b] = [await own.files.read(tensor), await read.files.read(tensor)];
      const worst = Math.max(...a.map((value, i) => Math.abs(value - b[i]!)));
      expect(worst, tensor).toBeLessThanOrEqual(most);
    }
  });
});

test("ranges of a tensor are those of the whole, where rows move and where they do not", async () => {
  const { files } = await openModel(join(dir, "Llama-3.2-1B-q8_0"));
  for (const name of ["model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"]) {
    const whole = await files.read(name);
    for (const [start, length] of [
      [0, 1],
      [63, 66],
      [1000, 777],
      [whole.length - 5, 5],
    ] as const)
      expect(await files.read(name, { start, length })).toEqual(whole.slice(start, start + length));
  }
});

test("a file, the folder that holds it and an import are one model", async () => {
  const place = join(dir, "Qwen3-0.6B-bf16");
  const file = join(place, readdirSync(place)[0]!);
  const out = join(dir, "imported");
  const { dtype } = await importGguf(file, { out });
  expect(dtype).toBe("bfloat16");
  const [byFile, byFolder, imported] = [await openModel(file), await openModel(place), await openModel(out)];
  expect(byFolder.mark.fingerprint).toBe(byFile.mark.fingerprint);
  expect(imported.files.config).toEqual(byFile.files.config);
  for (const name of byFile.files.tensors.keys())
    expect(await imported.files.read(name), name).toEqual(await byFile.files.read(name));
  const model = await loadModel(device, await openModel(file));
  model.release();
  await expect(importGguf(file, { out })).rejects.toThrow(/Cannot import: the folder is not empty/);
  await expect(importGguf(join(dir, "none.gguf"), { out: join(dir, "o") })).rejects.toThrow(
    /there is no such GGUF file/,
  );
});

test("an adapter names the file by its path from the root, and a name of the Hub as it is", async () => {
  const place = join(dir, "Qwen3-0.6B-bf16");
  const file = join(place, readdirSync(place)[0]!);
  for (const given of [relative(process.cwd(), file), file])
    expect(await baseNameOf(given)).toEqual({ folder: file, name: file });
  expect(await baseNameOf("org/model.gguf")).toEqual({ folder: "org/model.gguf", name: "org/model.gguf" });
});

test("the command writes a folder, and others take the file", async () => {
  const place = join(dir, "SmolLM2-135M-q8_0");
  const file = join(place, readdirSync(place)[0]!);
  const out = join(dir, "by-command");
  const { code, err } = await grpu(["import", file, "--out", out, "--dtype", "float32"]);
  expect(err).toMatch(/wrote the model in float32: model\.safetensors, config\.json, tokenizer\.json/);
  expect(code).toBe(0);
  const sampled = await grpu(["sample", "--model", file, "--prompt", "ab", "--max-tokens", "2", "--device", "cpu"]);
  expect([sampled.code, sampled.err]).toEqual([0, expect.any(String)]);
  const plan = await grpu(["plan", "examples/gsm8k_smollm/run.yaml", `model.name=${file}`, "--memory", "1GiB"]);
  expect(plan.out + plan.err).toMatch(/fits/);
  const rows = join(dir, "rows.jsonl");
  writeFileSync(rows, `${JSON.stringify({ prompt: "ab", answer: "1" })}\n`);
  const run = ["examples/gsm8k/run.yaml", `data.val_files=${rows}`, "data.prompt_key=prompt", "--no-cache"];
  const short = ["rllm.data.max_response_length=2", "--device", "cpu"];
  const scored = await grpu(["eval", ...run, "--model", file, ...short]);
  expect([scored.code, scored.err]).toEqual([0, expect.any(String)]);
});

const u32 = (value: number): GgufValue => ({ type: "u32", value });
const text = (value: string): GgufValue => ({ type: "string", value });

async function opened(changes: Readonly<Record<string, GgufValue | undefined>>) {
  return ggufFolder([bytesReader(await tinyModel(changes))], { name: "test.gguf" });
}

test("keys that a file may leave out have llama.cpp's defaults", async () => {
  const folder = await opened({ "tokenizer.ggml.eot_token_id": u32(1), "tokenizer.ggml.eos_token_id": u32(0) });
  expect(await readFolderJson(folder, "config.json")).toMatchObject({
    model_type: "qwen2",
    ...{ num_key_value_heads: 1, head_dim: 4, rope_theta: 10_000, rms_norm_eps: 1e-6, tie_word_embeddings: true },
  });
  expect(await readFolderJson(folder, "generation_config.json")).toEqual({ eos_token_id: [0, 1] });
});

test.each([
  [26, 4],
  [62, 8],
])("Gemma of %d layers divides q by the root of %d", async (layers, scalar) => {
  const keys = { context_length: 64, embedding_length: 16, block_count: layers, feed_forward_length: 8 };
  const more = { "attention.head_count": 2, "attention.key_length": 4, "attention.sliding_window": 32 };
  const own = Object.entries({ ...keys, ...more }).map(([key, value]) => [`gemma3.${key}`, u32(value)]);
  const folder = await opened({
    ...Object.fromEntries(own),
    "general.architecture": text("gemma3"),
    "gemma3.attention.layer_norm_rms_epsilon": { type: "f32", value: 1e-6 },
  });
  expect(await readFolderJson(folder, "config.json")).toMatchObject({
    query_pre_attn_scalar: scalar,
    sliding_window: 32,
  });
});

test.each<[string, Readonly<Record<string, GgufValue | undefined>>, RegExp]>([
  ["no family", { "general.architecture": undefined }, /it has no general\.architecture/],
  ["another family", { "general.architecture": text("rwkv6") }, /the family rwkv6 is not supported/],
  ["a size that is missing", { "qwen2.block_count": undefined }, /it has no qwen2\.block_count/],
  ["half-rotated heads", { "qwen2.rope.dimension_count": u32(2) }, /qwen2\.rope\.dimension_count=2 is not supported/],
  ["other heads of v", { "qwen2.attention.value_length": u32(8) }, /qwen2\.attention\.value_length=8 is not/],
  ["scaled logits", { "qwen2.logit_scale": { type: "f32", value: 0.5 } }, /qwen2\.logit_scale=0\.5 is not supported/],
  ["capped logits", { "qwen2.final_logit_softcapping": { type: "f32", value: 30 } }, /softcapping=30 is not supported/],
  ["experts", { "qwen2.expert_count": u32(8) }, /qwen2\.expert_count=8 is not supported/],
  ["YaRN", { "qwen2.rope.scaling.type": text("yarn") }, /scaled by yarn/],
  ["another kind of vocabulary", { "tokenizer.ggml.model": text("bert") }, /a vocabulary of the kind bert/],
  ["another pre-tokenizer", { "tokenizer.ggml.pre": text("viking") }, /the pre-tokenizer viking/],
  ["a token outside", { "tokenizer.ggml.bos_token_id": u32(7) }, /the bos token is 7, and it has 2 tokens/],
  [
    "a token twice",
    { "tokenizer.ggml.tokens": { type: "strings", value: ["a", "a"] } },
    /the token "a" has the ids 0 and 1/,
  ],
  ["tokens that are numbers", { "tokenizer.ggml.tokens": { type: "i32s", value: [1] } }, /is no list of strings/],
  ["shards that are missing", { "split.count": u32(3) }, /it has 3 shards/],
])("%s is refused", async (_, changes, message) => {
  await expect(opened(changes)).rejects.toThrow(message);
});

test("a folder with several files asks which, and a shard that is missing is named", async () => {
  const place = join(dir, "Qwen2.5-0.5B-f16");
  const [first] = readdirSync(place);
  const bytesOfFirst = join(place, first!);
  writeFileSync(join(place, "other.gguf"), "");
  await expect(openModel(place)).rejects.toThrow(
    /it has 2 GGUF files \(model-f16\.gguf, other\.gguf\)\. Name the file/,
  );
  const shard = join(place, "m-00001-of-00002.gguf");
  renameSync(bytesOfFirst, shard);
  await expect(openModel(shard)).rejects.toThrow(/a shard is missing.*m-00002-of-00002\.gguf/s);
});
