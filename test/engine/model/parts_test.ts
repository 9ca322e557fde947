/** Small parts of the model in figures: how tensors lie together, what is drawn at first, selections and checks. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { attentionParams, keyRows, queryRows, valueRows } from "../../../src/engine/model/blocks/qkv_layout.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { modelConfigJson } from "../../../src/engine/model/files/config_json.ts";
import { fusedParts, fusedShapes, matrixNames } from "../../../src/engine/model/fused_parts.ts";
import { drawWeights } from "../../../src/engine/model/initial_weights.ts";
import { blocksOf, tensorsOf } from "../../../src/engine/model/layers.ts";
import { logitStride } from "../../../src/engine/model/logit_windows.ts";
import { describeLora, loraConfig, moduleOf } from "../../../src/engine/model/lora.ts";
import { openModelShape } from "../../../src/engine/model/model_shape.ts";
import { longestSequence, packInput } from "../../../src/engine/model/packed_input.ts";
import { allocateAll, layOutParameters, ParameterSet } from "../../../src/engine/model/parameters.ts";
import { Scratch } from "../../../src/engine/model/scratch.ts";
import { packedFormats, trainsWeights } from "../../../src/engine/model/storage_format.ts";
import { selectTop } from "../../../src/engine/model/train/top_logprobs.ts";
import { OutOfMemoryError } from "../../../src/leaves/errors.ts";
import { refusing } from "../../fixtures/changed_device.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const folder = temporaryFolder("model-parts");
// Two query heads on one key head of width 4, C 8, F 12.
const CONFIG: ModelConfig = {
  ...SMALL_MODEL,
  ...{ vocabSize: 30, hiddenSize: 8, intermediateSize: 12, layers: 1, heads: 2, kvHeads: 1, headDim: 4 },
  ...{ tied: false, qkvBias: true, qkNorm: false },
};

describe("tensors that multiply the same input", () => {
  const parts = fusedParts(CONFIG);
  const of = (name: string) => {
    const { fused, row, rows, columns } = parts.find(({ tensor }) => tensor.endsWith(name))!;
    return [fused.replace("model.layers.0.", ""), row, rows, columns];
  };

  test.each([
    ["q_proj.weight", "self_attn.qkv.weight", 0, 8, 8],
    ["k_proj.weight", "self_attn.qkv.weight", 8, 4, 8],
    ["v_proj.weight", "self_attn.qkv.weight", 12, 4, 8],
    ["q_proj.bias", "self_attn.qkv.bias", 0, 8, 1],
    ["v_proj.bias", "self_attn.qkv.bias", 12, 4, 1],
    ["o_proj.weight", "self_attn.o_proj.weight", 0, 8, 8],
    ["gate_proj.weight", "mlp.gate_up.weight", 0, 12, 8],
    ["up_proj.weight", "mlp.gate_up.weight", 12, 12, 8],
    ["down_proj.weight", "mlp.down_proj.weight", 0, 8, 12],
    ["input_layernorm.weight", "input_layernorm.weight", 0, 1, 8],
    ["lm_head.weight", "lm_head.weight", 0, 30, 8],
  ])("%s lies in %s from row %i on", (tensor, ...place) => {
    expect(of(tensor)).toEqual(place);
  });

  test("lie in matrices of all their rows; the vocabulary is padded to fours", () => {
    const shapes = fusedShapes(parts);
    expect(shapes.get("model.layers.0.self_attn.qkv.weight")).toEqual({ rows: 16, columns: 8 });
    expect(shapes.get("model.layers.0.self_attn.qkv.bias")).toEqual({ rows: 16, columns: 1 });
    expect(shapes.get("lm_head.weight")).toEqual({ rows: 32, columns: 8 });
    expect([30, 32, 33].map(logitStride)).toEqual([32, 32, 36]);
  });

  test("are matrices or not by what their blocks say", () => {
    const matrices = [...matrixNames(parts)];
    expect(matrices.length).toBe(6);
    expect(matrices.some((name) => /norm|bias/.test(name))).toBe(false);
    const vocabulary = parts.filter(({ role }) => role === "vocabulary").map(({ tensor }) => tensor);
    expect(vocabulary).toEqual(["model.embed_tokens.weight", "lm_head.weight"]);
  });

  test("are walked by kernels as heads", () => {
    expect(queryRows(CONFIG, 3)).toEqual({
      ...{ rows: 6, width: 4, per_token: 2, x_stride: 16, x_offset: 0, y_stride: 16, y_offset: 0 },
    });
    expect(keyRows(CONFIG, 3)).toMatchObject({ rows: 3, per_token: 1, x_offset: 8, y_offset: 8 });
    expect(valueRows(CONFIG, 3)).toEqual({
      ...{ rows: 3, width: 4, x_stride: 16, x_offset: 12, y_stride: 16, y_offset: 12, scale: 1, accumulate: 0 },
    });
    expect(attentionParams({ ...CONFIG, window: 7, scale: 0.5 }, { tokens: 3 })).toEqual({
      ...{ tokens: 3, heads: 2, key_heads: 1, window: 7, scale: 0.5 },
      ...{ q_stride: 16, q_offset: 0, k_stride: 16, k_offset: 8, v_stride: 16, v_offset: 12 },
    });
    expect(attentionParams({ ...CONFIG, window: Infinity, scale: 1 }, { tokens: 3 }).window).toBe(0xffff_ffff);
    expect(blocksOf({ ...CONFIG, queryPreAttnScalar: 64 })[0]).toMatchObject({ scale: 0.125 });
  });

  test("are named by layer, with biases where the model has them", () => {
    const [attention, mlp] = blocksOf(CONFIG);
    const at = "model.layers.0";
    expect(attention).toMatchObject({
      ...{ kind: "attention", layer: 0, inputNorm: `${at}.input_layernorm.weight`, window: Infinity, scale: 0.5 },
      qkv: { matrix: `${at}.self_attn.qkv.weight`, bias: `${at}.self_attn.qkv.bias` },
      output: { matrix: `${at}.self_attn.o_proj.weight`, bias: undefined, norm: undefined },
      rope: { ropeTheta: CONFIG.ropeTheta },
    });
    expect(mlp).toMatchObject({
      ...{ kind: "gated_mlp", width: 12, activation: "silu", inputNorm: `${at}.post_attention_layernorm.weight` },
      gateUp: { matrix: `${at}.mlp.gate_up.weight`, bias: undefined },
      output: { matrix: `${at}.mlp.down_proj.weight`, bias: undefined, norm: undefined },
    });
    const [biased, wide] = blocksOf({ ...CONFIG, qkvBias: false, outputBias: true, mlpBias: true });
    expect(biased).toMatchObject({ qkv: { bias: undefined }, output: { bias: `${at}.self_attn.o_proj.bias` } });
    expect(wide).toMatchObject({
      gateUp: { bias: `${at}.mlp.gate_up.bias` },
      output: { bias: `${at}.mlp.down_proj.bias` },
    });
  });

  test("name every tensor of a layer once, in both systems", () => {
    const tensors = tensorsOf({ ...CONFIG, qkNorm: true, outputNorms: true, mlpBias: true, outputBias: true });
    for (const key of ["name", "gguf"] as const)
      expect(new Set(tensors.map((tensor) => tensor[key])).size, key).toBe(tensors.length);
  });
});

describe("shards", () => {
  test("hold tensors from multiples of 256 bytes on, 64 MiB at most together", () => {
    const device = new CountingDevice();
    const { entries, shardBytes } = layOutParameters(device, [
      ["a", { rows: 3, columns: 5 }],
      ["b", { rows: 8, columns: 8 }],
      ["large", { rows: 2 ** 12, columns: 2 ** 12 }],
      ["c", { rows: 1, columns: 1 }],
    ]);
    expect([...entries.values()].map(({ shard, byteOffset }) => [shard, byteOffset])).toEqual([
      ...[
        [0, 0],
        [0, 256],
        [1, 0],
        [2, 0],
      ],
    ]);
    expect(shardBytes).toEqual([512, 2 ** 26, 256]);
    const set = new ParameterSet(device, layOutParameters(device, entries), "values");
    expect([set.byteLength, set.has("a"), set.has("d")]).toEqual([512 + 2 ** 26 + 256, true, false]);
    expect(() => set.get("d")).toThrow("Cannot find a parameter named d.");
  });

  test("are none where the memory does not suffice for all", () => {
    const { device } = refusing(new CpuDevice(), { alloc: 2 });
    expect(() => allocateAll(device, [256, 256, 256], "values")).toThrow(OutOfMemoryError);
    expect(device.memory.live).toBe(0);
  });
});

describe("how matrices are held", () => {
  const parts = fusedParts({ ...CONFIG, hiddenSize: 64, intermediateSize: 64, headDim: 32 });
  const of = (options: object, type: "BF16" | "F32" = "BF16") =>
    new Set(packedFormats(parts, { typeOf: () => type, ...options }).values());

  test("as the file has them, or as the options say", () => {
    expect(of({ frozen: true })).toEqual(new Set(["bfloat16"]));
    expect(of({ frozen: true }, "F32")).toEqual(new Set());
    expect(of({ frozen: true, dtype: "float32" })).toEqual(new Set());
    expect(of({ lora: {}, dtype: "bfloat16" }, "F32")).toEqual(new Set(["bfloat16"]));
    expect(of({ lora: {}, quantization: "nf4" })).toEqual(new Set(["bfloat16", "nf4"]));
    expect(of({})).toEqual(new Set());
    const formats = packedFormats(parts, { frozen: true, quantization: "int8", typeOf: () => "F32" });
    expect([...formats.keys()].some((name) => /embed|lm_head/.test(name))).toBe(false);
    expect(formats.size).toBe(4);
  });

  test("with one part in another type than the others as float32", () => {
    const typeOf = (tensor: string) => (tensor.includes("k_proj") ? "F32" : "BF16") as never;
    const formats = packedFormats(parts, { frozen: true, typeOf });
    expect(formats.has("model.layers.0.self_attn.qkv.weight")).toBe(false);
    expect(formats.has("model.layers.0.mlp.gate_up.weight")).toBe(true);
  });

  test("not quantised where they train, or are not whole blocks", () => {
    expect(() => of({ quantization: "nf4" })).toThrow("Cannot hold the weights as nf4: all of them train.");
    const odd = fusedParts({ ...CONFIG, hiddenSize: 8, intermediateSize: 12 });
    expect(() => packedFormats(odd, { frozen: true, quantization: "int8", typeOf: () => "F32" })).toThrow(
      /Cannot hold model\.layers\.0\.\S+ as int8: its weights are not whole blocks of 64 \(\d+ x \d+\)\./,
    );
    expect([{}, { lora: {} }, { frozen: true }, { frozen: false }].map(trainsWeights)).toEqual([
      ...[true, false, false, true],
    ]);
  });
});

test("an adapter's shape is filled in from the defaults", () => {
  expect(loraConfig({ rank: 4 })).toEqual({
    ...{ rank: 4, alpha: 32 },
    targets: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
  });
  expect(describeLora({ rank: 8, alpha: 16, targets: ["v_proj", "q_proj"] })).toBe(
    "rank 8, alpha 16 on q_proj, v_proj",
  );
  expect(moduleOf("a.weight.b.weight")).toBe("a.weight.b");
});

test("fresh weights have published deviations: residual outputs by depth, embeddings 0.02, norms one, biases zero", async () => {
  const device = new CpuDevice();
  const config = { ...CONFIG, hiddenSize: 64, intermediateSize: 128, layers: 2, headDim: 32, vocabSize: 200 };
  const tensors = await drawWeights(device, config).readTensors();
  const deviation = (name: string) => {
    const values = tensors.get(name)!;
    return Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
  };
  const expected = {
    "model.embed_tokens.weight": 0.02,
    "lm_head.weight": 1 / 8,
    "model.layers.1.self_attn.q_proj.weight": 1 / 8,
    "model.layers.1.self_attn.o_proj.weight": 1 / 8 / 2,
    "model.layers.1.mlp.up_proj.weight": 1 / 8,
    "model.layers.0.mlp.down_proj.weight": 1 / Math.sqrt(128) / 2,
  };
  for (const [name, wanted] of Object.entries(expected)) expect(deviation(name) / wanted, name).toBeCloseTo(1, 1);
  expect(new Set(tensors.get("model.norm.weight"))).toEqual(new Set([1]));
  expect(new Set(tensors.get("model.layers.0.self_attn.k_proj.bias"))).toEqual(new Set([0]));
  const again = await drawWeights(device, config, { seed: 0 }).readTensors();
  expect(again.get("lm_head.weight")).toEqual(tensors.get("lm_head.weight"));
  const other = await drawWeights(device, config, { seed: 1 }).readTensors();
  expect(other.get("lm_head.weight")).not.toEqual(tensors.get("lm_head.weight"));
  const offset = await drawWeights(device, { ...config, unitOffsetNorms: true }).readTensors();
  expect(new Set(offset.get("model.norm.weight"))).toEqual(new Set([0]));
});

describe("the type of a folder's weights without its weights", () => {
  test.each([
    [{ torch_dtype: "bfloat16" }, "BF16"],
    [{ torch_dtype: "torch.float16" }, "F16"],
    [{ dtype: "float32", torch_dtype: "bfloat16" }, "F32"],
    [{ torch_dtype: "float8" }, undefined],
    [{}, undefined],
  ])("of %j is %s", async (more, type) => {
    const dir = join(folder, `of${JSON.stringify(more).replace(/\W/g, "")}`);
    mkdirSync(dir);
    const { torch_dtype: _, dtype: __, ...json } = modelConfigJson(CONFIG) as Record<string, unknown>;
    writeFileSync(join(dir, "config.json"), JSON.stringify({ ...json, ...more }));
    const { config, typeOf } = await openModelShape(dir);
    expect([config.hiddenSize, typeOf("any")]).toEqual([8, type]);
  });
});

describe("the most likely tokens", () => {
  const of = (logits: number[], k: number) => {
    const top = { tokens: new Uint32Array(k), logprobs: new Float32Array(k).fill(-Infinity) };
    selectTop(Float32Array.from(logits), top);
    return { tokens: [...top.tokens], logprobs: Array.from(top.logprobs, (x) => Number(x.toFixed(4))) };
  };

  test("come first, the lowest id of equal ones before the others", () => {
    const total = Math.log(Math.exp(1) + Math.exp(3) + Math.exp(3) + 1);
    const rounded = (x: number) => Number((x - total).toFixed(4));
    expect(of([1, 3, 0, 3], 3)).toEqual({ tokens: [1, 3, 0], logprobs: [3, 3, 1].map(rounded) });
    expect(of([1, 3, 0, 3], 1)).toEqual({ tokens: [1], logprobs: [rounded(3)] });
    expect(of([0, 1, 2, 3], 2).tokens).toEqual([3, 2]);
    expect(of([3, 2, 1, 0], 2).tokens).toEqual([0, 1]);
    expect(of([800, 0], 1).logprobs).toEqual([0]);
  });

  test("are as many as there are", () => {
    const half = Number(Math.log(0.5).toFixed(4));
    expect(of([0, 0], 3)).toEqual({ tokens: [0, 1, 0], logprobs: [half, half, -Infinity] });
  });
});

test("packed sequences carry positions, and where they begin and end", async () => {
  const device = new CpuDevice();
  const scratch = new Scratch(device);
  const rows = { tokens: Uint32Array.of(7, 8, 9, 5, 6), offsets: Uint32Array.of(0, 3, 3, 5) };
  const input = packInput(scratch, rows);
  const read = async (buffer: typeof input.tokens) =>
    [...(await device.read([{ buffer, type: "u32", length: 5 }]))[0]!] as number[];
  expect(await Promise.all([input.tokens, input.positions, input.sequenceStart, input.sequenceEnd].map(read))).toEqual([
    [7, 8, 9, 5, 6],
    [0, 1, 2, 0, 1],
    [0, 0, 0, 3, 3],
    [3, 3, 3, 5, 5],
  ]);
  expect([input.count, longestSequence(rows.offsets), longestSequence(Uint32Array.of(0))]).toEqual([5, 3, 0]);
  scratch.release();
  expect(device.memory.live).toBe(0);
});

describe("the buffers of a piece of work", () => {
  test("are released once: early, at its end, or where it throws", () => {
    const device = new CpuDevice();
    const live = () => device.memory.live;
    const foreign = device.alloc(256, "foreign");
    const base = live();
    Scratch.during(device, (scratch) => {
      const [a] = [scratch.floats(64, "a"), scratch.upload(new Uint32Array(64), "b")];
      scratch.free(a, a, foreign);
      expect(live()).toBe(base + 256);
    });
    expect(live()).toBe(base);
    const fails = (scratch: Scratch) => {
      scratch.floats(64, "a");
      throw new Error("no");
    };
    expect(() => Scratch.during(device, fails)).toThrow("no");
    expect(() => Scratch.unlessThrown(device, fails)).toThrow("no");
    expect(live()).toBe(base);
    const kept = Scratch.unlessThrown(device, (scratch) => {
      scratch.adopt(foreign);
      return scratch;
    });
    expect(live()).toBe(base);
    kept.release();
    kept.release();
    expect(live()).toBe(base - 256);
  });
});

test("a parameter set reads what was written, tensor by tensor", async () => {
  const device = new CpuDevice();
  const layout = layOutParameters(device, [
    ["a", { rows: 1, columns: 3 }],
    ["b", { rows: 2, columns: 2 }],
  ]);
  const [one, two] = [new ParameterSet(device, layout, "one"), new ParameterSet(device, layout, "two")];
  one.write("a", Float32Array.of(1, 2, 3));
  one.write("b", Float32Array.of(4, 5, 6, 7));
  two.copyFrom(one);
  one.clear();
  expect([...(await two.read())].map(([name, data]) => [name, [...data]])).toEqual([
    ["a", [1, 2, 3]],
    ["b", [4, 5, 6, 7]],
  ]);
  expect([...(await readFloats(device, one.get("b"), 4))]).toEqual([0, 0, 0, 0]);
  one.release();
  two.release();
  expect(device.memory.live).toBe(0);
});
