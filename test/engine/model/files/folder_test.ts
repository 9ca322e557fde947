import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { parseModelConfig } from "../../../../src/engine/model/files/config_json.ts";
import { writeFolder } from "../../../../src/engine/model/files/disk.ts";
import { openModelFolder } from "../../../../src/engine/model/files/folder.ts";
import { type Adapter, openAdapter, writeAdapterFolder } from "../../../../src/engine/model/files/peft.ts";
import { encodeSafetensors, type TensorSource } from "../../../../src/engine/model/files/safetensors_write.ts";
import { characterTokenizer } from "../../../../src/engine/model/files/tokenizer.ts";
import { writeModelFolder } from "../../../../src/engine/model/files/write_model_folder.ts";
import { weightShapes } from "../../../../src/engine/model/layers.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

const root = temporaryFolder("folder");
let dir = "";
let made = 0;
beforeEach(() => {
  dir = join(root, `${made++}`);
});

const CONFIG: ModelConfig = parseModelConfig({
  model_type: "qwen3",
  vocab_size: 12,
  hidden_size: 8,
  intermediate_size: 12,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 12,
  max_position_embeddings: 32,
  tie_word_embeddings: true,
  eos_token_id: 11,
  pad_token_id: 10,
});

function weights(config = CONFIG): TensorSource[] {
  return [...weightShapes(config)].map(([name, shape], i) => ({
    name,
    shape,
    data: Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, j) => Math.fround(i + j / 7)),
  }));
}

async function bytesOf(tensors: TensorSource[]): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of encodeSafetensors(tensors)) chunks.push(chunk.slice());
  return Buffer.concat(chunks);
}

describe("writeModelFolder()", () => {
  test("is read back whole: configuration, tokenizer, every weight", async () => {
    const tokenizer = characterTokenizer("0123456789");
    await writeModelFolder(dir, {
      config: CONFIG,
      tensors: weights(),
      tokenizer,
      extra: { "notes.txt": "hi" },
    });
    expect(readdirSync(dir).sort()).toEqual([
      "config.json",
      "model.safetensors",
      "notes.txt",
      "tokenizer.json",
      "tokenizer_config.json",
    ]);
    const model = await openModelFolder(dir);
    expect(model.config).toEqual(CONFIG);
    expect(model.tokenizer?.encode("42")).toEqual([4, 2]);
    expect(model.tokenizer?.eosTokenIds).toEqual([11]);
    for (const { name, data } of weights()) expect(await model.read(name)).toEqual(data);
    expect(await model.read("model.norm.weight", { start: 2, length: 3 })).toHaveLength(3);
  });

  test("refuses weights that do not match the configuration", async () => {
    const save = (tensors: TensorSource[]) => writeModelFolder(dir, { config: CONFIG, tensors });
    await expect(save(weights().slice(1))).rejects.toThrow(
      /tensor model\.embed_tokens\.weight must be \[12,8\] \(missing\)/,
    );
    const bent = weights().map((t) => (t.name === "model.norm.weight" ? { ...t, shape: [2, 4] } : t));
    await expect(save(bent)).rejects.toThrow(/model\.norm\.weight must be \[8\] \(2,4\)/);
    const more = { name: "x", shape: [1], data: new Float32Array(1) };
    await expect(save([...weights(), more])).rejects.toThrow(/it has no tensor x/);
    expect(existsSync(dir)).toBe(false);
  });

  test("leaves the previous model intact when the disk fills up", async () => {
    await writeModelFolder(dir, { config: CONFIG, tensors: weights() });
    const before = readFileSync(join(dir, "model.safetensors"));
    const full = () => Promise.reject(Object.assign(new Error("ENOSPC: no space left"), { code: "ENOSPC" }));
    const tensors = weights().map((t, i) => (i === 5 ? { ...t, data: full } : t));
    await expect(writeModelFolder(dir, { config: CONFIG, tensors })).rejects.toThrow(
      /Cannot write the file: the disk is full.*model\.safetensors/,
    );
    expect(readdirSync(dir).sort()).toEqual(["config.json", "model.safetensors"]);
    expect(readFileSync(join(dir, "model.safetensors"))).toEqual(before);
  });

  test("says so when a file is where the folder should be", async () => {
    writeFileSync(join(root, "plain"), "");
    await expect(writeModelFolder(join(root, "plain"), { config: CONFIG, tensors: weights() })).rejects.toThrow(
      /a file of that name is in the way.*plain/,
    );
    await expect(writeFolder(join(root, "plain", "x"), [])).rejects.toThrow(/part of the path is a file/);
  });
});

describe("openModelFolder()", () => {
  const shard = (from: number, to: number) => weights().slice(from, to);
  async function writeModel(tensors: TensorSource[]): Promise<void> {
    await writeModelFolder(dir, { config: CONFIG, tensors: weights() });
    writeFileSync(join(dir, "model.safetensors"), await bytesOf(tensors));
  }

  test("reads weights spread over files by their index", async () => {
    await writeModel([]);
    rmSync(join(dir, "model.safetensors"));
    const files = {
      "model-00001-of-00002.safetensors": shard(0, 9),
      "model-00002-of-00002.safetensors": shard(9, 99),
    };
    const map: Record<string, string> = {};
    for (const [file, tensors] of Object.entries(files)) {
      writeFileSync(join(dir, file), await bytesOf(tensors));
      for (const { name } of tensors) map[name] = file;
    }
    const index = (weight_map: unknown) =>
      writeFileSync(join(dir, "model.safetensors.index.json"), JSON.stringify({ metadata: {}, weight_map }));
    index(map);
    const model = await openModelFolder(dir);
    for (const { name, data } of weights()) {
      expect(await model.read(name)).toEqual(data);
      const bytes = await model.readBytes(name, { start: 1, length: 2 });
      expect(new Float32Array(bytes.slice().buffer)).toEqual((data as Float32Array).slice(1, 3));
    }
    await expect(model.read("toString")).rejects.toThrow(/index does not list it/);
    await expect(model.readBytes("toString")).rejects.toThrow(/index does not list it/);

    const path = join(dir, "model.safetensors.index.json");
    writeFileSync(
      path,
      readFileSync(path, "utf8").replace('"model.norm.weight"', '"model.norm.weight":"x.safetensors",$&'),
    );
    await expect(openModelFolder(dir)).rejects.toThrow(/names "model\.norm\.weight" twice.*index\.json/);
    // The same name written with an escape.
    const escaped = '"model.norm.w\\u0065ight":"model-00002-of-00002.safetensors",';
    writeFileSync(path, JSON.stringify({ weight_map: map }).replace('"model.norm.weight"', `${escaped}$&`));
    await expect(openModelFolder(dir)).rejects.toThrow(/names "model\.norm\.weight" twice/);
    const second = join(dir, "model-00002-of-00002.safetensors");
    writeFileSync(second, await bytesOf([...shard(8, 99)]));
    index(map);
    await expect(openModelFolder(dir)).rejects.toThrow(
      /lies in two files \(model-00001-of-00002\.safetensors, model-0000/,
    );
    writeFileSync(second, (await bytesOf(shard(9, 99))).subarray(0, -4));
    await expect(openModelFolder(dir)).rejects.toThrow(
      /tensor model\.norm\.weight: the file is truncated.*00002-of-00002/,
    );
    writeFileSync(second, await bytesOf(shard(9, 99)));

    index({ ...map, "model.norm.weight": "model-00001-of-00002.safetensors" });
    await expect(openModelFolder(dir)).rejects.toThrow(/tensor model\.norm\.weight: the index names a file without it/);
    index({ ...map, "model.norm.weight": "../elsewhere.safetensors" });
    await expect(openModelFolder(dir)).rejects.toThrow(/must be in this folder/);
    index(undefined);
    await expect(openModelFolder(dir)).rejects.toThrow(/no weight_map.*index\.json/);
    index(map);
    rmSync(join(dir, "model-00002-of-00002.safetensors"));
    await expect(openModelFolder(dir)).rejects.toThrow(/there is no file model-00002-of-00002\.safetensors/);
  });

  test("reads an index whose metadata names files, or holds long and odd texts, within a second", async () => {
    await writeModel(weights());
    const odd = { note: '{"weight_map": \\"', "model.norm.weight": "a.safetensors", text: '\\"'.repeat(2 ** 20) };
    const map = Object.fromEntries(weights().map(({ name }) => [name, "model.safetensors"]));
    writeFileSync(
      join(dir, "model.safetensors.index.json"),
      JSON.stringify({ "model.norm.weight": "b.safetensors", metadata: { ...odd, inner: odd }, weight_map: map }),
    );
    const started = performance.now();
    expect((await openModelFolder(dir)).tensors.size).toBe(weights().length);
    expect(performance.now() - started).toBeLessThan(5000);
  });

  test("finds a repeated name among many in linear time", async () => {
    await writeModel(weights());
    const names = Array.from({ length: 100_000 }, (_, i) => `"t${i}":"model.safetensors"`);
    const text = `{"weight_map": {${names.join(",")}, "t99999":"model.safetensors"}}`;
    writeFileSync(join(dir, "model.safetensors.index.json"), text);
    const started = performance.now();
    await expect(openModelFolder(dir)).rejects.toThrow('names "t99999" twice');
    expect(performance.now() - started).toBeLessThan(5000);
  });

  test("names a missing, misshapen or unexpected file or tensor", async () => {
    await expect(openModelFolder(dir)).rejects.toThrow(/model folder: it does not exist/);
    mkdirSync(dir);
    await expect(openModelFolder(dir)).rejects.toThrow(/has no config\.json/);
    await writeModel(weights().slice(0, -1));
    await expect(openModelFolder(dir)).rejects.toThrow(/tensor model\.norm\.weight \[8\] is missing/);
    await writeModel(weights().map((t) => (t.name === "model.norm.weight" ? { ...t, shape: [4, 2] } : t)));
    await expect(openModelFolder(dir)).rejects.toThrow(
      /Cannot load tensor model\.norm\.weight: config\.json requires shape \[8\] \(\[4,2\]\).*model\.safetensors\)/,
    );
    const ints = (t: TensorSource) => ({ ...t, data: Int32Array.from(t.data as Float32Array) });
    await writeModel(weights().map((t) => (t.name === "model.norm.weight" ? ints(t) : t)));
    await expect(openModelFolder(dir)).rejects.toThrow(
      /Cannot load tensor model\.norm\.weight: weights must be F32, BF16, F16 or F64 \(I32\)/,
    );
    const bias = { name: "model.layers.0.self_attn.q_proj.bias", shape: [12], data: new Float32Array(12) };
    await writeModel([...weights(), bias]);
    await expect(openModelFolder(dir)).rejects.toThrow(/qwen3 has no tensor .*q_proj\.bias/);
    rmSync(join(dir, "model.safetensors"));
    await expect(openModelFolder(dir)).rejects.toThrow(/there is no file model\.safetensors/);
    writeFileSync(join(dir, "config.json"), "{");
    await expect(openModelFolder(dir)).rejects.toThrow(/not JSON.*config\.json/);
  });

  test.each([
    [
      { vocab_size: 13 },
      /embed_tokens\.weight: config\.json requires shape \[13,8\] \(\[12,8\]\)\. It follows from vocab_size/,
    ],
    [{ num_attention_heads: 4 }, /q_proj\.weight: .* \[48,8\] .*num_attention_heads, head_dim and hidden_size/],
    [{ num_key_value_heads: 2 }, /k_proj\.weight: .* \[24,8\] .*num_key_value_heads, head_dim and hidden_size/],
    [{ head_dim: 8 }, /q_proj\.weight: .* \[16,8\] \(\[24,8\]\)/],
    [{ intermediate_size: 16 }, /mlp\.gate_proj\.weight: .*intermediate_size and hidden_size/],
    [
      { num_hidden_layers: 3 },
      /tensor model\.layers\.2\.input_layernorm\.weight \[8\] is missing \(config\.json has num_hidden_layers 3\)/,
    ],
    [{ num_hidden_layers: 1 }, /no tensor model\.layers\.1\.\S+ \(config\.json has num_hidden_layers 1\)/],
    [{ num_hidden_layers: 1e12 }, /num_hidden_layers must be at most 1000/],
    [{ num_attention_heads: 3, num_key_value_heads: 2 }, /multiple of key-value heads \(3 and 2\)/],
    [{ layer_types: ["full_attention"] }, /layer_types must have an entry for each of the 2 layers/],
    [{ attention_bias: true }, /tensor model\.layers\.0\.self_attn\.q_proj\.bias \[24\] is missing/],
    [{ model_type: "gemma3_text" }, /tensor model\.layers\.0\.\S+ \[\S+\] is missing/],
    [{ max_position_embeddings: 1e15 }, undefined],
  ])("a config.json that says %j of other weights", async (change, message) => {
    await writeModel(weights());
    const path = join(dir, "config.json");
    writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), ...change }));
    if (message) await expect(openModelFolder(dir)).rejects.toThrow(message);
    else await expect(openModelFolder(dir)).resolves.toBeDefined();
  });

  test("prefers the end tokens of generation_config.json, and ignores tensors that no forward pass reads", async () => {
    const unused = [
      { ...weights()[0]!, name: "lm_head.weight" },
      { name: "model.layers.0.self_attn.rotary_emb.inv_freq", shape: [3], data: new Float32Array(3) },
    ];
    await writeModel([...weights(), ...unused]);
    writeFileSync(join(dir, "generation_config.json"), JSON.stringify({ eos_token_id: [7, 8] }));
    expect((await openModelFolder(dir)).config.eosTokenIds).toEqual([7, 8]);
  });

  test.each([
    [
      "another shape than the table's",
      { shape: [8, 12], data: new Float32Array(96) },
      /lm_head\.weight: .*shape \[12,8\]/,
    ],
    [
      "integers",
      { shape: [12, 8], data: new Float32Array(96), dtype: "I32" },
      /lm_head\.weight as floats: it holds I32/,
    ],
  ])("refuses an output matrix with %s in a tied model", async (_, head, message) => {
    await writeModel(weights());
    const bytes = await bytesOf([...weights(), { name: "lm_head.weight", ...head } as TensorSource]);
    const isInteger = "dtype" in head;
    const text = bytes.toString("latin1");
    const patched = text.replace(/("lm_head\.weight":\{"dtype":)"F32"/, '$1"I32"');
    writeFileSync(join(dir, "model.safetensors"), Buffer.from(isInteger ? patched : text, "latin1"));
    await expect(openModelFolder(dir)).rejects.toThrow(message);
  });

  test("refuses what it would not read: an output matrix beside a scalar head, a file beside its index", async () => {
    const config = { ...CONFIG, scoreHead: true };
    await writeModelFolder(dir, { config, tensors: weights(config) });
    const head = { ...weights()[0]!, name: "lm_head.weight" };
    writeFileSync(join(dir, "model.safetensors"), await bytesOf([...weights(config), head]));
    await expect(openModelFolder(dir)).rejects.toThrow(/has no tensor lm_head\.weight/);

    await writeModel(weights());
    const index = (names: string[], file: string) =>
      writeFileSync(
        join(dir, "model.safetensors.index.json"),
        JSON.stringify({ weight_map: Object.fromEntries(names.map((name) => [name, file])) }),
      );
    const names = weights().map(({ name }) => name);
    cpSync(join(dir, "model.safetensors"), join(dir, "a.safetensors"));
    index(names, "a.safetensors");
    await expect(openModelFolder(dir)).rejects.toThrow(/an index of weights and a file model\.safetensors/);
    rmSync(join(dir, "model.safetensors"));
    await expect(openModelFolder(dir)).resolves.toBeDefined();
    index(names.slice(1), "a.safetensors");
    await expect(openModelFolder(dir)).rejects.toThrow(
      /a\.safetensors holds tensor model\.embed_tokens\.weight, which the index does not list/,
    );
  });

  test("reads through a custom reader", async () => {
    await writeModel(weights());
    const model = await openModelFolder({
      name: "blobs",
      async open(file) {
        if (!existsSync(join(dir, file))) return undefined;
        const blob = new Blob([readFileSync(join(dir, file))]);
        const read = async (o: number, n: number) => new Uint8Array(await blob.slice(o, o + n).arrayBuffer());
        return { name: file, size: blob.size, read };
      },
    });
    expect(await model.read("model.norm.weight")).toEqual(weights().at(-1)?.data);
  });

  test.skipIf(!hasShared).each(["stories260k", "tiny-qwen3"])(
    "opens %s, and a truncated copy names it",
    async (name) => {
      const model = await openModelFolder(sharedPath(`models/${name}`));
      expect([...model.tensors.keys()].sort()).toEqual([...weightShapes(model.config).keys()].sort());
      expect(model.tokenizer === undefined).toBe(name === "tiny-qwen3");
      cpSync(sharedPath(`models/${name}`), dir, { recursive: true });
      rmSync(join(dir, "model.safetensors"));
      const whole = readFileSync(sharedPath(`models/${name}/model.safetensors`));
      writeFileSync(join(dir, "model.safetensors"), whole.subarray(0, whole.length - 1000));
      await expect(openModelFolder(dir)).rejects.toThrow(/tensor \S+: the file is truncated.*model\.safetensors/);
    },
  );
});

describe("a LoRA adapter", () => {
  const adapter: Adapter = {
    rank: 2,
    alpha: 4,
    targets: ["q_proj", "down_proj"],
    base: "some/model",
    modules: new Map([
      ["model.layers.0.self_attn.q_proj", factors({ inSize: 8, outSize: 12 })],
      ["model.layers.0.mlp.down_proj", factors({ inSize: 12, outSize: 8 })],
    ]),
  };
  function factors(size: { inSize: number; outSize: number }) {
    const a = Float32Array.from({ length: 2 * size.inSize }, (_, i) => i / 3);
    return { a, b: Float32Array.from({ length: size.outSize * 2 }, (_, i) => -i), ...size };
  }

  test("is written in PEFT's form and read back", async () => {
    await writeAdapterFolder(dir, adapter);
    const config = JSON.parse(readFileSync(join(dir, "adapter_config.json"), "utf8"));
    expect(config).toMatchObject({
      peft_type: "LORA",
      task_type: "CAUSAL_LM",
      r: 2,
      lora_alpha: 4,
      bias: "none",
    });
    expect(readFileSync(join(dir, "adapter_model.safetensors"), "latin1")).toContain(
      '"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":{"dtype":"F32","shape":[2,8]',
    );
    expect(await openAdapter(dir)).toEqual({ ...adapter, scoreHead: false, targets: expect.anything() });
  });

  test("is refused for PEFT features that change the formula, and for parts that do not fit", async () => {
    await writeAdapterFolder(dir, adapter);
    const path = join(dir, "adapter_config.json");
    const config = JSON.parse(readFileSync(path, "utf8"));
    const cases: [object, RegExp][] = [
      [{ peft_type: "IA3" }, /peft_type "IA3"/],
      [{ use_dora: true }, /use_dora true/],
      [{ init_lora_weights: "pissa" }, /init_lora_weights "pissa"/],
      [{ layer_replication: [[0, 2]] }, /layer_replication/],
      [{ a_later_feature: { of: "PEFT" } }, /a_later_feature/],
      [{ target_modules: ["q_proj"] }, /down_proj has factors, but target_modules is \[q_proj\]/],
      [{ bias: "all" }, /bias "all"/],
      [{ rank_pattern: { q_proj: 4 } }, /rank_pattern/],
      [{ r: 3 }, /tensor \S+lora_A\.weight does not have the adapter's rank 3 \(shape \[2,8\]\)/],
      [{ lora_alpha: "4" }, /lora_alpha must be a number/],
    ];
    for (const [change, message] of cases) {
      writeFileSync(path, JSON.stringify({ ...config, ...change }));
      await expect(openAdapter(dir)).rejects.toThrow(message);
    }
    rmSync(path);
    await expect(openAdapter(dir)).rejects.toThrow(/no adapter_config\.json/);
  });
});
