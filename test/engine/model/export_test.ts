import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { exportFolder } from "../../../src/engine/model/export.ts";
import { writeFolder } from "../../../src/engine/model/files/disk.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import {
  type AdapterFactors,
  openAdapter,
  readAdapterShape,
  writeAdapterFolder,
} from "../../../src/engine/model/files/peft.ts";
import { encodeSafetensors } from "../../../src/engine/model/files/safetensors_write.ts";
import { byteTokenizer, withChatTemplate } from "../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../../src/engine/model/lora.ts";
import { openModelShape } from "../../../src/engine/model/model_shape.ts";
import { loadModel, openModel } from "../../../src/engine/model/open_model.ts";
import { saveAdapterFolder, saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { grpu } from "../../fixtures/cli.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const root = temporaryFolder("export");
const device = new CpuDevice();
afterAll(() => device.destroy());

const ROWS = { tokens: Uint32Array.of(1, 200, 3, 4, 5), offsets: Uint32Array.of(0, 5) };
const GENERATION = '{"eos_token_id": [257, 2], "temperature": 0.6}';
const TARGETS = [...ATTENTION_TARGETS, ...MLP_TARGETS];
let made = 0;
const place = () => join(root, `${made++}`);

/** Folders of a base model and of an adapter on it that changes its log-probs. */
async function folders(it: { tied?: boolean; dtype?: "F32" | "BF16" } = {}) {
  const { tied = false, dtype = "BF16" } = it;
  const config: ModelConfig = { ...SMALL_MODEL, tied, vocabSize: 258, contextLength: 16, eosTokenIds: [257] };
  const [base, adapter] = [place(), place()];
  const tokenizer = byteTokenizer();
  await saveModelFolder(base, { model: LanguageModel.create(device, config, { seed: 3 }), tokenizer, dtype });
  writeFileSync(join(base, "generation_config.json"), GENERATION);
  const raw = JSON.parse(readFileSync(join(base, "config.json"), "utf8"));
  writeFileSync(join(base, "config.json"), JSON.stringify({ ...raw, transformers_version: "5.23.0" }));
  const opened = await openModel(base);
  const model = await loadModel(device, opened, { lora: { rank: 2, targets: TARGETS } });
  for (const { name, rows, columns } of model.trainable.layout.entries.values())
    if (name.endsWith(".B")) model.trainable.write(name, floats(rows * columns, rows, 0.1));
  await saveAdapterFolder(adapter, { model, tokenizer: withChatTemplate(tokenizer, "own"), base: opened.mark });
  return { base, adapter };
}

async function logprobsOf(folder: string): Promise<Float32Array> {
  const model = await loadModel(device, await openModel(folder));
  return (await model.logprobs(ROWS, { policy: "current", temperature: 1 })).logprobs;
}

const textIn = (dir: string, name: string) => readFileSync(join(dir, name), "utf8");

describe("a merged model", () => {
  test.each([
    ["float32", 1e-5],
    ["bfloat16", 0.05],
  ] as const)("gives the log-probs of the base with its adapter, in %s", async (dtype, absolute) => {
    const { base, adapter } = await folders();
    const out = place();
    const { kind } = await exportFolder(adapter, { out, merge: true, dtype });
    expect(kind).toBe("model");
    expectClose(await logprobsOf(out), await logprobsOf(adapter), { relative: 0, absolute });
    // The test can fail: the adapter changes them by more.
    const plain = await logprobsOf(base);
    const changed = (await logprobsOf(adapter)).map((value, i) => Math.abs(value - plain[i]!));
    expect(Math.max(...changed)).toBeGreaterThan(0.1);
    const { tensors } = await openModelFolder(out);
    expect(new Set([...tensors.values()].map((info) => info.dtype))).toEqual(
      new Set([dtype === "float32" ? "F32" : "BF16"]),
    );
  });

  test("has the adapter's tokenizer and template, and the base's other files and keys", async () => {
    const { base, adapter } = await folders();
    const out = place();
    await exportFolder(adapter, { out, merge: true });
    expect(readdirSync(out).sort()).toEqual(
      "chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split(
        " ",
      ),
    );
    expect(textIn(out, "chat_template.jinja")).toBe("own");
    expect(textIn(out, "generation_config.json")).toBe(GENERATION);
    const config = JSON.parse(textIn(base, "config.json"));
    expect(JSON.parse(textIn(out, "config.json"))).toEqual({ ...config, torch_dtype: "bfloat16" });
    expect((await openModelFolder(out)).config.eosTokenIds).toEqual([257, 2]);
  });

  test("is cut into files of a bounded size, with an index, and reads the same", async () => {
    const { adapter } = await folders({ dtype: "F32" });
    const [whole, cut] = [place(), place()];
    await exportFolder(adapter, { out: whole, merge: true });
    const { files } = await exportFolder(adapter, { out: cut, merge: true, maxShardBytes: 20_000 });
    const shards = files.filter((name) => /^model-\d{5}-of-\d{5}\.safetensors$/.test(name));
    expect(shards.length).toBeGreaterThan(2);
    expect(shards.at(-1)).toBe(`model-0000${shards.length}-of-0000${shards.length}.safetensors`);
    const index = JSON.parse(textIn(cut, "model.safetensors.index.json"));
    const [one, other] = [await openModelFolder(whole), await openModelFolder(cut)];
    let bytes = 0;
    for (const [name, info] of one.tensors) {
      bytes += info.byteLength;
      expect(index.weight_map[name]).toMatch(/^model-/);
      expect(await other.read(name)).toEqual(await one.read(name));
    }
    expect(index.metadata.total_size).toBe(bytes);
    expect(existsSync(join(cut, "model.safetensors"))).toBe(false);
  });

  test("rounds the sum of a weight and its products to bfloat16 once", async () => {
    const { base, adapter } = await folders();
    const module = "model.layers.0.mlp.down_proj";
    const { inSize, outSize } = (await openAdapter(adapter)).modules.get(module)!;
    const name = `${module}.weight`;
    const [weight] = await (await openModelFolder(base)).read(name, { start: 0, length: 1 });
    // Half of the last place of bfloat16 at this weight, and less than half of that of f32: beyond the tie.
    const ulp = 2 ** (Math.floor(Math.log2(Math.abs(weight!))) - 7);
    const products = [ulp / 2, ulp * 2 ** -24].map((size) => Math.sign(weight!) * size);
    const a = new Float32Array(2 * inSize);
    const b = new Float32Array(2 * outSize);
    for (const [k, product] of products.entries()) [a[k * inSize], b[k]] = [1, product];
    const own = place();
    await writeAdapterFolder(own, {
      ...(await openAdapter(adapter)),
      ...{ rank: 2, alpha: 2, targets: ["down_proj"], modules: new Map([[module, { a, b, inSize, outSize }]]) },
    });
    const out = place();
    await exportFolder(own, { out, merge: true, base });
    const [merged] = await (await openModelFolder(out)).read(name, { start: 0, length: 1 });
    expect(merged).toBe(weight! + Math.sign(weight!) * ulp);
  });

  test("keeps the exact bytes of matrices that no adapter changes", async () => {
    const { base, adapter } = await folders({ tied: true });
    const out = place();
    await exportFolder(adapter, { out, merge: true });
    const [one, other] = [await openModelFolder(base), await openModelFolder(out)];
    expect([...other.tensors.keys()]).toEqual([...one.tensors.keys()]);
    const name = "model.embed_tokens.weight";
    expect(await other.read(name)).toEqual(await one.read(name));
    expect(other.tensors.get(name)?.dtype).toBe("BF16");
  });

  test("has an output matrix of its own where the adapter changes a tied one", async () => {
    const { base } = await folders({ tied: true });
    const [adapter, out] = [place(), place()];
    const { vocabSize: outSize, hiddenSize: inSize } = (await openModelFolder(base)).config;
    const factors = { a: floats(inSize, 1, 0.2), b: floats(outSize, 2, 0.2), inSize, outSize };
    const modules = new Map([["lm_head", factors]]);
    await writeAdapterFolder(adapter, { rank: 1, alpha: 2, targets: ["lm_head"], base, modules });
    await exportFolder(adapter, { out, merge: true, dtype: "float32" });
    const merged = await openModelFolder(out);
    expect(merged.config.tied).toBe(false);
    const [table, head] = [await merged.read("model.embed_tokens.weight"), await merged.read("lm_head.weight")];
    const at = 5 * inSize + 3;
    expect(head[at]).toBeCloseTo(table[at]! + 2 * factors.b[5]! * factors.a[3]!, 5);
    expectClose(await logprobsOf(out), await logprobsOf(adapter), { relative: 0, absolute: 1e-5 });
  });
});

describe("a base whose config.json ties an output matrix that is another than the table", () => {
  /** Its log-probs without `tie_word_embeddings`, the folder that says it is tied, and an adapter on it. */
  async function mistiedFolders() {
    const { base, adapter } = await folders({ dtype: "F32" });
    const plain = await logprobsOf(base);
    const path = join(base, "config.json");
    const saidUntied = textIn(base, "config.json");
    writeFileSync(path, JSON.stringify({ ...JSON.parse(saidUntied), tie_word_embeddings: true }));
    return { base, adapter, plain };
  }

  test("keeps the matrix: in log-probs, merged, saved and as GGUF", async () => {
    const { base, adapter, plain } = await mistiedFolders();
    expect(await logprobsOf(base)).toEqual(plain);
    const head = await (await openModelFolder(base)).read("lm_head.weight");

    const merged = place();
    await exportFolder(adapter, { out: merged, merge: true });
    expect(JSON.parse(textIn(merged, "config.json")).tie_word_embeddings).toBe(false);
    expect(await (await openModelFolder(merged)).read("lm_head.weight")).toEqual(head);
    expectClose(await logprobsOf(merged), await logprobsOf(adapter), { relative: 0, absolute: 1e-5 });

    const saved = place();
    await saveModelFolder(saved, { model: await loadModel(device, await openModel(base)) });
    expect(JSON.parse(textIn(saved, "config.json")).tie_word_embeddings).toBe(false);
    expect(await logprobsOf(saved)).toEqual(plain);

    const gguf = place();
    const vocab = Object.fromEntries(Array.from({ length: 258 }, (_, id) => [`t${id}`, id]));
    const tokenizer = { model: { type: "BPE", byte_fallback: true, vocab, merges: [] } };
    writeFileSync(join(base, "tokenizer.json"), JSON.stringify(tokenizer));
    await exportFolder(base, { out: gguf, gguf: "f32" });
    expect(readFileSync(join(gguf, "model-f32.gguf"), "latin1")).toMatch(/[^_]output\.weight/);
    expect((await openModelShape(base)).config.tied).toBe(false);
  });

  test("is the tied model where both are equal, or the output matrix alone is there", async () => {
    const { base } = await folders({ tied: true, dtype: "F32" });
    const plain = await logprobsOf(base);
    const { tensors, read } = await openModelFolder(base);
    const sources = await Promise.all(
      [...tensors].map(async ([name, { shape }]) => ({ name, shape, data: await read(name) })),
    );
    const table = sources.find(({ name }) => name === "model.embed_tokens.weight")!;
    const head = { ...table, name: "lm_head.weight" };
    for (const held of [
      [...sources, head],
      [...sources.filter((source) => source !== table), head],
    ]) {
      await writeFolder(base, [{ name: "model.safetensors", content: encodeSafetensors(held) }]);
      expect((await openModelFolder(base)).config.tied).toBe(true);
      expect(await logprobsOf(base)).toEqual(plain);
      const out = place();
      await exportFolder(base, { out });
      expect([...(await openModelFolder(out)).tensors.keys()].sort()).toEqual([...tensors.keys()].sort());
      expect(JSON.parse(textIn(out, "config.json")).tie_word_embeddings).toBe(true);
      expect(await logprobsOf(out)).toEqual(plain);
    }
  });
});

test("an adapter with a scalar head is not merged without it", async () => {
  const { base, adapter } = await folders();
  const scored = place();
  const score = floats(SMALL_MODEL.hiddenSize, 4);
  await writeAdapterFolder(scored, { ...(await openAdapter(adapter)), scoreHead: true, score, base });
  await expect(exportFolder(scored, { out: place(), merge: true })).rejects.toThrow(
    /Cannot merge the adapter: it has a scalar head.*--merge/,
  );
});

describe("an adapter", () => {
  test("is copied with its base's place, its tokenizer and its template", async () => {
    const { base, adapter } = await folders();
    const out = place();
    const { kind, files } = await exportFolder(adapter, { out });
    expect(kind).toBe("adapter");
    expect(files).toContain("chat_template.jinja");
    expect(await openAdapter(out)).toEqual(await openAdapter(adapter));
    expect((await readAdapterShape(out)).base).toBe(resolve(base));
    await expect(exportFolder(adapter, { out: place(), dtype: "bfloat16" })).rejects.toThrow(/factors are float32/);
  });

  test("names its base by its path, whatever model the base's weights came from", async () => {
    const { base, adapter } = await folders();
    const config = JSON.parse(textIn(base, "config.json"));
    // What transformers writes into a fine-tuned model: the name of the model that it was fine-tuned from.
    const recorded = { ...config, _name_or_path: "Qwen/Qwen2.5-0.5B-Instruct" };
    writeFileSync(join(base, "config.json"), JSON.stringify(recorded));
    const out = place();
    await exportFolder(adapter, { out });
    const written = JSON.parse(textIn(out, "adapter_config.json"));
    expect(written.base_model_name_or_path).toBe(resolve(base));
    // What a person writes into adapter_config.json holds.
    writeFileSync(join(out, "adapter_config.json"), JSON.stringify({ ...written, base_model_name_or_path: "./other" }));
    expect((await readAdapterShape(out)).base).toBe("./other");
  });

  test("with its base's config.json beside it is an adapter all the same", async () => {
    const { base, adapter } = await folders();
    writeFileSync(join(adapter, "config.json"), textIn(base, "config.json"));
    expect((await exportFolder(adapter, { out: place() })).kind).toBe("adapter");
    expect((await exportFolder(adapter, { out: place(), merge: true })).kind).toBe("model");
  });

  test("is compared with the base that is named", async () => {
    const { adapter } = await folders();
    await expect(exportFolder(adapter, { out: place(), base: place() })).rejects.toThrow(/Cannot open/);
  });

  test("of a model in the cache of Hugging Face's clients has the name of that model", async () => {
    const { base } = await folders();
    const cached = join(root, "models--Qwen--Qwen3-0.6B", "snapshots", "abc");
    await exportFolder(base, { out: cached });
    const adapter = place();
    const factors = { a: new Float32Array(1), b: new Float32Array(1), inSize: 1, outSize: 1 };
    await writeAdapterFolder(adapter, {
      rank: 1,
      alpha: 1,
      targets: ["x"],
      base: cached,
      modules: new Map([["x", factors]]),
    });
    expect(JSON.parse(textIn(adapter, "adapter_config.json")).base_model_name_or_path).toBe("Qwen/Qwen3-0.6B");
  });
});

test("refuses a folder that holds files, and an adapter of another model", async () => {
  const { base, adapter } = await folders();
  await expect(exportFolder(adapter, { out: base, merge: true })).rejects.toThrow(
    /Cannot export: the folder is not empty/,
  );
  const other = place();
  const config: ModelConfig = {
    ...SMALL_MODEL,
    vocabSize: 258,
    hiddenSize: SMALL_MODEL.hiddenSize * 2,
    eosTokenIds: [],
  };
  await saveModelFolder(other, { model: LanguageModel.create(device, config) });
  const raw = JSON.parse(textIn(adapter, "base.json"));
  writeFileSync(join(adapter, "base.json"), JSON.stringify({ ...raw, fingerprint: undefined }));
  const out = place();
  await expect(exportFolder(adapter, { out, merge: true, base: other })).rejects.toThrow(
    /Cannot merge the adapter .*q_proj must be \[.*belongs to another model/,
  );
  expect(existsSync(out)).toBe(false);
});

test("grpu export merges a checkpoint, and prints what it wrote", async () => {
  const { adapter } = await folders();
  const out = place();
  mkdirSync(out);
  const args = [
    "export",
    adapter,
    "--out",
    out,
    "--merge",
    "--dtype",
    "float32",
    "--max-shard-bytes",
    "30000",
    "--json",
  ];
  const { code, out: printed, err } = await grpu(args);
  expect(code, err).toBe(0);
  const written = JSON.parse(printed);
  expect(written).toMatchObject({ out, kind: "model", dtype: "float32" });
  expect(readdirSync(out).sort()).toEqual([...written.files].sort());
  expectClose(await logprobsOf(out), await logprobsOf(adapter), { relative: 0, absolute: 1e-5 });
});

describe("an adapter that cannot be read leaves nothing on the device", () => {
  type Modules = Map<string, AdapterFactors>;
  const spoilLast = (modules: Modules) => {
    const [name, factors] = [...modules].at(-1)!;
    modules.set(name, { ...factors, inSize: 1 });
  };
  test.each([
    ["merged", {}, spoilLast, /must be \[\d+, \d+\]/],
    ["kept beside packed weights", { dtype: "bfloat16", frozen: true } as const, spoilLast, /must be \[\d+, \d+\]/],
    ["without its matrices", {}, (modules: Modules) => modules.clear(), /Cannot put an adapter on/],
  ])("%s", async (_, options, damage, says) => {
    const { adapter } = await folders();
    const opened = await openModel(adapter);
    const before = device.memory.live;
    damage(opened.adapters[0]!.adapter.modules as Modules);
    await expect(loadModel(device, opened, options)).rejects.toThrow(says);
    expect(device.memory.live).toBe(before);
  });
});
