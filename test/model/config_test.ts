import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { parameterCount, ropeFrequencies, weightShapes } from "../../src/model/files/config.ts";
import { modelConfigJson, parseModelConfig } from "../../src/model/files/config_json.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";

const LLAMA = {
  model_type: "llama",
  vocab_size: 100,
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  max_position_embeddings: 64,
};

describe("parseModelConfig()", () => {
  test.skipIf(!hasShared)("reads the test models", () => {
    const read = (name: string) =>
      parseModelConfig(JSON.parse(readFileSync(sharedPath(`models/${name}/config.json`), "utf8")));
    const stories = read("stories260k");
    expect(stories).toMatchObject({
      heads: 8,
      kvHeads: 4,
      headDim: 8,
      tied: true,
      qkNorm: false,
      ropeTheta: 1e4,
    });
    expect(stories).toMatchObject({ bosTokenId: 1, eosTokenIds: [2], contextLength: 512, rmsNormEps: 1e-5 });
    expect(parameterCount(stories)).toBe(260_032);
    // rope_theta inside rope_parameters, head width that is not hidden / heads.
    expect(read("tiny-qwen3")).toMatchObject({ qkNorm: true, headDim: 16, tied: false, ropeTheta: 1e6 });
  });

  test("fills absent keys with the architecture's published defaults", () => {
    expect(parseModelConfig(LLAMA)).toMatchObject({
      kvHeads: 4,
      headDim: 8,
      ropeTheta: 10_000,
      rmsNormEps: 1e-6,
      tied: false,
      eosTokenIds: [],
    });
    expect(parseModelConfig({ ...LLAMA, model_type: "qwen3" }).headDim).toBe(128);
    expect(parseModelConfig({ ...LLAMA, model_type: "qwen2" }).qkvBias).toBe(true);
    expect(parseModelConfig({ ...LLAMA, eos_token_id: [1, 2] }).eosTokenIds).toEqual([1, 2]);
  });

  const refused: [change: Record<string, unknown>, error: string, message: RegExp][] = [
    [
      { model_type: "gemma3" },
      "UnsupportedError",
      /model_type "gemma3": supported is llama, qwen2, qwen3 \(my\.json\)/,
    ],
    [{ model_type: undefined }, "ConfigError", /model_type is missing.*my\.json/],
    [{ hidden_size: undefined }, "ConfigError", /hidden_size is missing\. \(my\.json, hidden_size\)/],
    [{ hidden_size: "32" }, "ConfigError", /hidden_size must be a positive number \("32"\)/],
    [{ num_hidden_layers: 1.5 }, "ConfigError", /num_hidden_layers must be a whole number \(1\.5\)/],
    [{ num_key_value_heads: 3 }, "ConfigError", /multiple of key-value heads \(4 and 3\)/],
    [{ head_dim: 7 }, "ConfigError", /head width must be even \(7\)/],
    [{ hidden_act: "gelu" }, "UnsupportedError", /hidden_act "gelu": .*\(my\.json\)/],
    [{ attention_bias: true }, "UnsupportedError", /attention_bias true/],
    [{ mlp_bias: true }, "UnsupportedError", /mlp_bias true/],
    [{ use_sliding_window: true }, "UnsupportedError", /use_sliding_window true/],
    [{ quantization_config: { bits: 4 } }, "UnsupportedError", /quantization_config/],
    [{ layer_types: ["full_attention", "sliding_attention"] }, "UnsupportedError", /layer_types "sliding_attention"/],
    [{ rope_scaling: { rope_type: "yarn", factor: 4 } }, "UnsupportedError", /rope_scaling\.rope_type "yarn"/],
    [{ rope_scaling: { rope_type: "llama3", factor: 4 } }, "ConfigError", /rope_scaling\.low_freq_factor is missing/],
    [{ eos_token_id: -1 }, "ConfigError", /eos_token_id must be a token id \(-1\)/],
    [{ eos_token_id: 100 }, "ConfigError", /end token is outside the vocabulary \(100\)/],
  ];
  test.each(refused)("refuses %j", (change, name, message) => {
    const parse = () => parseModelConfig({ ...LLAMA, ...change }, "my.json");
    expect(parse).toThrow(message);
    expect(parse).toThrow(expect.objectContaining({ name }));
  });
});

test("modelConfigJson() is read back to the same configuration", () => {
  const scaling = {
    rope_type: "llama3",
    factor: 32,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 8192,
  };
  for (const change of [
    {},
    { eos_token_id: [3, 4], bos_token_id: 0, pad_token_id: 5, tie_word_embeddings: true },
    { model_type: "qwen2" },
    { model_type: "qwen3", head_dim: 16, rope_parameters: { rope_theta: 1e6, rope_type: "default" } },
    { rope_scaling: scaling, rope_theta: 5e5 },
  ]) {
    const config = parseModelConfig({ ...LLAMA, ...change });
    expect(parseModelConfig(JSON.parse(JSON.stringify(modelConfigJson(config))))).toEqual(config);
  }
});

test("weightShapes() has the tensors that the architecture's flags require", () => {
  const names = (change: object) => [...weightShapes(parseModelConfig({ ...LLAMA, ...change })).keys()];
  expect(names({})).toHaveLength(2 + 1 + 2 * 9);
  expect(names({ tie_word_embeddings: true })).not.toContain("lm_head.weight");
  expect(names({ model_type: "qwen2" })).toContain("model.layers.1.self_attn.k_proj.bias");
  expect(names({ model_type: "qwen3" })).toContain("model.layers.0.self_attn.q_norm.weight");
  const shapes = weightShapes(parseModelConfig({ ...LLAMA, head_dim: 16, num_key_value_heads: 2 }));
  expect(shapes.get("model.layers.0.self_attn.q_proj.weight")).toEqual([64, 32]);
  expect(shapes.get("model.layers.0.self_attn.k_proj.weight")).toEqual([32, 32]);
  expect(shapes.get("model.layers.0.self_attn.o_proj.weight")).toEqual([32, 64]);
});

test("ropeFrequencies() falls from 1 by theta, and llama3 scaling stretches only long waves", () => {
  const plain = ropeFrequencies({ headDim: 64, ropeTheta: 5e5 });
  expect(plain[0]).toBe(1);
  expect(plain[16]).toBeCloseTo(5e5 ** -0.5, 12);
  const ropeScaling = { factor: 32, lowFreqFactor: 1, highFreqFactor: 4, originalContextLength: 8192 };
  const scaled = ropeFrequencies({ headDim: 64, ropeTheta: 5e5, ropeScaling });
  expect(scaled[0]).toBe(plain[0]);
  expect(scaled[31]).toBe(plain[31]! / 32);
  const between = scaled.findIndex((f, i) => f !== plain[i]);
  // Published rule: wavelength between 8192/4 and 8192/1 is interpolated.
  expect((2 * Math.PI) / plain[between]!).toBeGreaterThan(8192 / 4);
  expect((2 * Math.PI) / plain[between - 1]!).toBeLessThan(8192 / 4);
  expect(scaled[between]).toBeGreaterThan(plain[between]! / 32);
});

test("llama3 scaling gives Llama 3.2 1B's frequencies around the smooth band", () => {
  const ropeScaling = { factor: 32, lowFreqFactor: 1, highFreqFactor: 4, originalContextLength: 8192 };
  const scaled = ropeFrequencies({ headDim: 64, ropeTheta: 5e5, ropeScaling });
  // By transformers' rule in wavelengths, in float64: the last plain one, the three interpolated, the first divided by 32.
  const published = {
    14: 3.2114459947525913e-3,
    15: 1.290547928209264e-3,
    16: 4.2955679655936815e-4,
    17: 9.70828780262767e-5,
    18: 1.9461638184831125e-5,
  };
  for (const [i, frequency] of Object.entries(published)) expect(scaled[Number(i)]! / frequency).toBeCloseTo(1, 12);
});
