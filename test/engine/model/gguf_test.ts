import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { exportFolder } from "../../../src/engine/model/export.ts";
import { modelConfigJson, parseModelConfig } from "../../../src/engine/model/files/config_json.ts";
import { encodeF16, encodeQ8 } from "../../../src/engine/model/gguf/encode.ts";
import { GGUF_FORMS, type GgufForm } from "../../../src/engine/model/gguf/form.ts";
import { modelMetadata } from "../../../src/engine/model/gguf/metadata.ts";
import { vocabularyMetadata } from "../../../src/engine/model/gguf/vocabulary.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { loadModel, openModel } from "../../../src/engine/model/open_model.ts";
import { saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { grpu } from "../../fixtures/cli.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { publishedConfig } from "../../fixtures/published.ts";
import { pythonWith } from "../../fixtures/python.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const dir = temporaryFolder("gguf");
const device = new CpuDevice();
afterAll(() => device.destroy());

describe("encodeF16()", () => {
  test.each([
    [0, 0],
    [-0, 0x8000],
    [1, 0x3c00],
    [-2, 0xc000],
    [65504, 0x7bff],
    [2 ** -14, 0x0400],
    [2 ** -24, 1],
    // Ties go to the even neighbour, above and below the smallest normal number.
    [2 ** -25, 0],
    [3 * 2 ** -25, 2],
    [1 + 2 ** -11, 0x3c00],
    [1 + 3 * 2 ** -11, 0x3c02],
    [2 - 2 ** -12, 0x4000],
  ])("writes %d as its nearest bits", (value, bits) => {
    expect(new Uint16Array(encodeF16("w", Float32Array.of(value)).buffer)[0]).toBe(bits);
  });
  test.each([65536, Number.NaN, -1e9])("refuses %d", (value) => {
    expect(() => encodeF16("blk.0.w", Float32Array.of(1, value))).toThrow(
      /blk\.0\.w holds .* at index 1, and f16 ends/,
    );
  });
});

test("encodeQ8() writes a scale and 32 bytes a block; halves round away from 0", () => {
  const values = new Float32Array(64);
  values.set([127, -127, 0.5, -0.5, 1.5, 126.4]);
  const bytes = encodeQ8(values);
  expect(bytes.length).toBe(68);
  expect([...new Int8Array(bytes.buffer, 2, 7)]).toEqual([127, -127, 1, -1, 2, 126, 0]);
  expect(new DataView(bytes.buffer).getUint16(0, true)).toBe(0x3c00);
  // A block of zeros has the scale 0.
  expect([...bytes.subarray(34)]).toEqual(new Array(34).fill(0));
});

/** A tokenizer of 256 bytes as GPT-2 spells them, with Qwen's way to split. */
const BYTE_LEVEL = {
  model: { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: ["a b"] },
  added_tokens: [
    {
      ...{ id: 3, content: "<|end|>", special: true, single_word: false },
      ...{ lstrip: false, rstrip: false, normalized: false },
    },
  ],
  normalizer: null,
  post_processor: null,
  decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
  pre_tokenizer: {
    type: "Sequence",
    pretokenizers: [
      {
        type: "Split",
        behavior: "Isolated",
        pattern: {
          Regex:
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        },
      },
      { type: "ByteLevel", add_prefix_space: false, use_regex: false },
    ],
  },
};

const NAMES = {
  settings: {},
  file: "m",
  chatTemplate: "{{ x }}",
  eosTokenIds: [3],
  bosTokenId: undefined,
  padTokenId: 0,
};

test("a byte-level vocabulary keeps its merges, and ids without a token are unused", () => {
  const fields = Object.fromEntries(vocabularyMetadata(BYTE_LEVEL, { ...NAMES, vocabSize: 5 }));
  expect(fields).toMatchObject({
    "tokenizer.ggml.model": { value: "gpt2" },
    "tokenizer.ggml.pre": { value: "qwen2" },
    "tokenizer.ggml.merges": { value: ["a b"] },
    "tokenizer.ggml.tokens": { value: ["a", "b", "ab", "<|end|>", "[PAD4]"] },
    "tokenizer.ggml.token_type": { value: [1, 1, 1, 3, 5] },
    "tokenizer.ggml.eos_token_id": { value: 3 },
    "tokenizer.ggml.padding_token_id": { value: 0 },
    "tokenizer.ggml.add_bos_token": { value: false },
    "tokenizer.chat_template": { value: "{{ x }}" },
  });
});

test.each([
  [{ ...BYTE_LEVEL, model: { type: "WordLevel", vocab: {} } }, 5, /llama\.cpp has no name for a WordLevel vocabulary/],
  [{ ...BYTE_LEVEL, pre_tokenizer: { type: "Whitespace" } }, 5, /no name for its pre-tokenizer/],
  [BYTE_LEVEL, 3, /the token "<\|end\|>" has the id 3, outside of the embedding \(3\)/],
])("a vocabulary without a counterpart is refused", (json, vocabSize, message) => {
  expect(() => vocabularyMetadata(json, { ...NAMES, vocabSize })).toThrow(message);
});

test.each([
  [{ architecture: "smollm3" }, /the family smollm3/],
  [{ mlpBias: true }, /biases in the MLP/],
  [
    { layerTypes: ["sliding_attention", "full_attention"], slidingWindow: 4 } as const,
    /sliding attention in the family/,
  ],
  [{ ropeScaling: { betaFast: 32, factor: 4 } as never }, /YaRN/],
])("a shape without a counterpart is refused: %j", (changes, message) => {
  const config = { ...parseModelConfig(modelConfigJson(SMALL_MODEL)), ...changes };
  expect(() => modelMetadata(config, { name: "m", form: "f16" })).toThrow(message);
});

test("the command refuses an adapter alone, two types, and a model without a tokenizer", async () => {
  const adapter = join(dir, "adapter");
  const out = (name: string) => ["--out", join(dir, name)];
  mkdirSync(adapter);
  writeFileSync(join(adapter, "adapter_config.json"), "{}");
  expect((await grpu(["export", adapter, "--gguf", "f16", ...out("a")])).err).toMatch(
    /Merge it into its base with --merge/,
  );
  const both = ["export", adapter, "--gguf", "f16", "--dtype", "float32", ...out("b")];
  expect((await grpu(both)).err).toMatch(/--gguf f16 and --dtype float32 both name a type/);
  const bare = join(dir, "bare");
  await saveModelFolder(bare, { model: LanguageModel.create(device, SMALL_MODEL) });
  expect((await grpu(["export", bare, "--gguf", "f16", ...out("c")])).err).toMatch(/it has no tokenizer\.json/);
});

const gguf = pythonWith("gguf");
if (gguf === undefined) console.warn("tests against the gguf package are skipped: no Python here has it");

function run(python: string, script: string, args: readonly string[]) {
  const path = fileURLToPath(new URL(`../../fixtures/${script}`, import.meta.url));
  const { status, stdout, stderr } = spawnSync(python, [path, ...args], { encoding: "utf8", maxBuffer: 2 ** 28 });
  expect(status, stderr).toBe(0);
  return JSON.parse(stdout.trim().split("\n").at(-1)!);
}

/** Published families with small matrices. */
const SMALL = {
  ...{ hidden_size: 64, intermediate_size: 96, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 32 },
  ...{ vocab_size: 5, bos_token_id: null, eos_token_id: 3, pad_token_id: null, torch_dtype: "float32" },
};

describe.skipIf(gguf === undefined)("gguf's reader has every tensor bit for bit", () => {
  test.each([
    ["Llama-3.2-1B", { head_dim: 16 }, { arch: "llama", more: ["rope_freqs.weight"] }],
    ["Qwen2.5-0.5B", { head_dim: 16 }, { arch: "qwen2", more: [] }],
    ["Qwen3-0.6B", {}, { arch: "qwen3", more: [] }],
    ["gemma-3-270m", { query_pre_attn_scalar: 32 }, { arch: "gemma3", more: [] }],
  ])("%s", async (published, changes, { arch, more }) => {
    const config = parseModelConfig({ ...publishedConfig(published, 2), ...SMALL, ...changes });
    const folder = join(dir, published);
    await saveModelFolder(folder, { model: LanguageModel.create(device, config, { seed: 3 }) });
    writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(BYTE_LEVEL));
    for (const form of Object.keys(GGUF_FORMS) as GgufForm[]) {
      const read = await check(folder, { form, config });
      expect(read.more).toEqual(more);
      expect(read.types).toEqual([...new Set(["F32", GGUF_FORMS[form].matrix])].sort());
      expect(read.fields["general.file_type"]).toBe(GGUF_FORMS[form].fileType);
      expect(read.fields).toMatchObject({
        "general.architecture": arch,
        [`${arch}.attention.head_count_kv`]: 2,
        [`${arch}.attention.key_length`]: config.headDim,
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>", "[PAD4]"],
      });
    }
  });
});

async function check(
  folder: string,
  it: { form: GgufForm; config: { heads: number; kvHeads: number; architecture: string } },
) {
  const out = `${folder}-${it.form}`;
  rmSync(out, { recursive: true, force: true });
  await exportFolder(folder, { out, gguf: it.form });
  const isInterleaved = Number(it.config.architecture === "llama");
  const args = [folder, join(out, `model-${it.form}.gguf`), it.config.heads, it.config.kvHeads, isInterleaved];
  return run(gguf!, "gguf_check.py", args.map(String));
}

const llama = pythonWith("xllamacpp");
if (llama === undefined) console.warn("tests against llama.cpp are skipped: no Python here has xllamacpp");

/** llama.cpp keeps keys and values in f16. Measured: 3e-4 for f16, 3e-2 for q8_0. */
test.skipIf(llama === undefined || !hasShared).each([
  ["f32", 0.002],
  ["bf16", 0.05],
  ["f16", 0.002],
  ["q8_0", 0.05],
] as const)("llama.cpp draws the same tokens with the same log-probs from %s", async (form, tolerance) => {
  const [source, out] = [sharedPath("models/stories260k"), join(dir, `stories-${form}`)];
  await exportFolder(source, { out, gguf: form });
  const text = "Once upon a time";
  const it = run(llama!, "llama_cpp.py", [join(out, `model-${form}.gguf`), text, "12"]);
  const opened = await openModel(source);
  const model = await loadModel(device, opened);
  const prompt = opened.tokenizer!.encode(text);
  expect(it.prompt_tokens).toBe(prompt.length);
  const tokens = Uint32Array.from([...prompt, ...it.tokens]);
  const { logprobs } = await model.logprobs(
    { tokens, offsets: Uint32Array.of(0, tokens.length) },
    { policy: "current", temperature: 1 },
  );
  const ours = logprobs.subarray(prompt.length);
  const errors = it.logprobs.map((logprob: number, i: number) => Math.abs(logprob - ours[i]!));
  expect(Math.max(...errors)).toBeLessThan(tolerance);
  expect(it.text).toBe(", there was a little girl named Lily. She");
});
