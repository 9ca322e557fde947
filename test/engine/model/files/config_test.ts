import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { modelConfigJson, parseModelConfig } from "../../../../src/engine/model/files/config_json.ts";
import { parameterCount, weightShapes } from "../../../../src/engine/model/layers.ts";
import { ropeAttentionFactor, ropeFrequencies } from "../../../../src/engine/model/rope.ts";
import { ROPES } from "../../../fixtures/families.ts";
import { publishedConfig } from "../../../fixtures/published.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

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
      /model_type "gemma3" \(a model of text and images; .* are gemma3_text\): supported is gemma3_text, llama, mistral, qwen2, qwen3, smollm3 \(my\.json\)/,
    ],
    [{ model_type: "qwen2_moe" }, "UnsupportedError", /"qwen2_moe" \(a mixture of experts\): supported is/],
    [{ model_type: "qwen3_moe" }, "UnsupportedError", /"qwen3_moe" \(a mixture of experts\): supported is/],
    [{ model_type: "mixtral" }, "UnsupportedError", /"mixtral" \(a mixture of experts\): supported is/],
    [{ model_type: "gemma2" }, "UnsupportedError", /"gemma2" \(soft-capped logits\): supported is/],
    [{ model_type: "phi3" }, "UnsupportedError", /"phi3" \(rotary positions over a part.*\): supported is/],
    [{ model_type: "qwen2_5_vl" }, "UnsupportedError", /"qwen2_5_vl" \(a model of more than text\): supported is/],
    [{ model_type: "olmo9" }, "UnsupportedError", /model_type "olmo9": supported is/],
    [{ model_type: 3 }, "UnsupportedError", /model_type 3: supported is/],
    [{ model_type: undefined }, "ConfigError", /model_type is missing.*my\.json/],
    [{ hidden_size: undefined }, "ConfigError", /hidden_size is missing \(my\.json, hidden_size\)\./],
    [{ hidden_size: "32" }, "ConfigError", /hidden_size must be a positive number \("32"\)/],
    [{ num_hidden_layers: 1.5 }, "ConfigError", /num_hidden_layers must be a whole number \(1\.5\)/],
    [{ num_key_value_heads: 3 }, "ConfigError", /multiple of key-value heads \(4 and 3\)/],
    [{ head_dim: 7 }, "ConfigError", /head width must be even \(7\)/],
    [{ hidden_act: "gelu" }, "UnsupportedError", /hidden_act "gelu": .*\(my\.json\)/],
    [{ head_dim: 6 }, "ConfigError", /head width must be a multiple of 4 up to 256 \(6\)/],
    [{ head_dim: 260 }, "ConfigError", /head width must be a multiple of 4 up to 256 \(260\)/],
    [{ hidden_size: 30, head_dim: 8 }, "ConfigError", /hidden size must be a multiple of 4 \(30\)/],
    [{ intermediate_size: 50 }, "ConfigError", /width of the MLP must be a multiple of 4 \(50\)/],
    [{ num_hidden_layers: 1e9 }, "ConfigError", /num_hidden_layers must be at most 1000 \(1000000000\)/],
    [{ attention_bias: "yes" }, "ConfigError", /attention_bias must be true or false \("yes"\)/],
    [{ tie_word_embeddings: 1 }, "ConfigError", /tie_word_embeddings must be true or false \(1\)/],
    [{ partial_rotary_factor: 0.5 }, "UnsupportedError", /partial_rotary_factor 0\.5: supported is 1/],
    [{ rope_scaling: "yarn" }, "ConfigError", /rope_scaling must be an object \("yarn"\)/],
    [
      { rope_scaling: { type: "dynamic", factor: 2 } },
      "UnsupportedError",
      /rope_scaling\.type "dynamic": supported is/,
    ],
    [{ rope_scaling: { rope_type: "longrope" } }, "UnsupportedError", /rope_scaling\.rope_type "longrope"/],
    [{ rope_scaling: { rope_type: "linear" } }, "ConfigError", /rope_scaling\.factor is missing/],
    [{ rope_scaling: { rope_type: "linear", factor: -1 } }, "ConfigError", /rope_scaling\.factor must be a positive/],
    [
      { rope_parameters: { partial_rotary_factor: 0.25 } },
      "UnsupportedError",
      /rope_parameters\.partial_rotary_factor/,
    ],
    [{ layer_types: ["full_attention"] }, "ConfigError", /layer_types must have an entry for each of the 2 layers/],
    [{ use_sliding_window: true }, "UnsupportedError", /use_sliding_window true/],
    [{ sliding_window: 16 }, "UnsupportedError", /sliding_window 16: supported is null/],
    [{ final_logit_softcapping: 30 }, "UnsupportedError", /final_logit_softcapping 30/],
    [{ logits_scaling: 8 }, "UnsupportedError", /logits_scaling 8: supported is 1/],
    [{ is_causal: false }, "UnsupportedError", /is_causal false/],
    [{ use_bidirectional_attention: true }, "UnsupportedError", /use_bidirectional_attention true/],
    [
      {
        rope_parameters: { rope_type: "linear", factor: 2, rope_theta: 5 },
        rope_scaling: { rope_type: "linear", factor: 4 },
      },
      "ConfigError",
      /rope_scaling must scale as rope_parameters does/,
    ],
    [
      { rope_theta: 6, rope_parameters: { rope_theta: 5 } },
      "ConfigError",
      /rope_theta must be the 5 that the file gives/,
    ],
    [
      {
        original_max_position_embeddings: 8,
        rope_scaling: { rope_type: "yarn", factor: 4, original_max_position_embeddings: 16 },
      },
      "ConfigError",
      /original_max_position_embeddings must be the 16/,
    ],
    [{ quantization_config: { bits: 4 } }, "UnsupportedError", /quantization_config/],
    [{ layer_types: ["full_attention", "sliding_attention"] }, "UnsupportedError", /layer_types "sliding_attention"/],
    [{ rope_scaling: { rope_type: "yarn", factor: "4" } }, "ConfigError", /rope_scaling\.factor must be a positive/],
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

// Of the configuration classes in transformers 5, without the sizes.
const PLAIN = { rmsNormEps: 1e-6, tied: false, qkNorm: false, qkvBias: false, ropeTheta: 10_000, eosTokenIds: [] };
test.each([
  ["llama", { ...PLAIN, headDim: 8, kvHeads: 4 }],
  [
    "mistral",
    { ...PLAIN, headDim: 8, kvHeads: 4, slidingWindow: 4096, layerTypes: Array(8).fill("sliding_attention") },
  ],
  ["qwen2", { ...PLAIN, headDim: 8, kvHeads: 4, qkvBias: true }],
  ["qwen3", { ...PLAIN, headDim: 128, kvHeads: 4, qkNorm: true }],
  [
    "smollm3",
    {
      ...{ ...PLAIN, headDim: 8, kvHeads: 4, tied: true, ropeTheta: 2_000_000, layersWithoutRope: [3, 7] },
      ...{ bosTokenId: 128_000, eosTokenIds: [128_001], padTokenId: 128_004 },
    },
  ],
  [
    "gemma3_text",
    {
      ...{
        ...PLAIN,
        headDim: 256,
        kvHeads: 4,
        tied: true,
        qkNorm: true,
        ropeTheta: 1_000_000,
        slidingRopeTheta: 10_000,
      },
      ...{ activation: "gelu_pytorch_tanh", unitOffsetNorms: true, outputNorms: true, embeddingScale: Math.sqrt(32) },
      ...{ queryPreAttnScalar: 256, slidingWindow: 4096, bosTokenId: 2, eosTokenIds: [1], padTokenId: 0 },
      layerTypes: Array.from({ length: 8 }, (_, i) => (i === 5 ? "full_attention" : "sliding_attention")),
    },
  ],
])("a config.json of %s that says only the sizes", (model_type, expected) => {
  const sizes = { ...LLAMA, vocab_size: 200_000, num_hidden_layers: 8, max_position_embeddings: 2048 };
  const { vocabSize, hiddenSize, intermediateSize, layers, heads, contextLength, architecture, ...rest } =
    parseModelConfig({
      ...sizes,
      model_type,
    });
  expect([vocabSize, hiddenSize, intermediateSize, layers, heads, contextLength]).toEqual([
    200_000, 32, 48, 8, 4, 2048,
  ]);
  expect(architecture).toBe(model_type);
  expect(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined))).toEqual(expected);
});

test.each([
  [{ num_hidden_layers: 1000 }, { layers: 1000 }],
  [{ head_dim: 256 }, { headDim: 256 }],
  [{ head_dim: 4 }, { headDim: 4 }],
  [{ eos_token_id: 99 }, { eosTokenIds: [99] }],
  [
    { eos_token_id: [0, 7], bos_token_id: [3], pad_token_id: null },
    { eosTokenIds: [0, 7], bosTokenId: 3, padTokenId: undefined },
  ],
  [{ hidden_act: "swish" }, { activation: undefined }],
  [
    { attention_bias: true, mlp_bias: true },
    { qkvBias: true, outputBias: true, mlpBias: true },
  ],
  [
    { attention_bias: null, rms_norm_eps: 1e-5 },
    { qkvBias: false, outputBias: undefined, rmsNormEps: 1e-5 },
  ],
  [{ quantization_config: null, attention_dropout: 0, partial_rotary_factor: 1 }, {}],
  [{ layer_types: ["full_attention", "full_attention"] }, {}],
  [{ rope_parameters: { rope_theta: 5 } }, { ropeTheta: 5, ropeScaling: undefined }],
  [
    { rope_scaling: { type: "default" }, rope_theta: 5 },
    { ropeTheta: 5, ropeScaling: undefined },
  ],
  [
    { rope_scaling: { type: "linear", factor: 2 }, rope_theta: 5 },
    { ropeTheta: 5, ropeScaling: { factor: 2 } },
  ],
  [{ sliding_window: 16, use_sliding_window: false }, {}],
  // As a model's card says to add it, to a file of transformers 5.
  [
    {
      rope_parameters: { rope_type: "default", rope_theta: 5 },
      rope_scaling: { rope_type: "linear", factor: 4 },
    },
    { ropeTheta: 5, ropeScaling: { factor: 4 } },
  ],
  [
    { rope_parameters: { rope_theta: 5, rope_type: "linear", factor: 2 }, rope_scaling: { type: "linear", factor: 2 } },
    { ropeTheta: 5, ropeScaling: { factor: 2 } },
  ],
  [
    { rope_theta: 5, rope_parameters: { rope_theta: 5 }, rope_scaling: null },
    { ropeTheta: 5, ropeScaling: undefined },
  ],
  [
    {
      original_max_position_embeddings: 16,
      rope_scaling: { rope_type: "llama3", factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
    },
    { ropeScaling: { factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalContextLength: 16 } },
  ],
  // Newer files keep the old key beside the new one.
  [{ rope_scaling: { type: "old", rope_type: "linear", factor: 2 } }, { ropeScaling: { factor: 2 } }],
  [
    { rope_scaling: { rope_type: "llama3", factor: 8, low_freq_factor: 1, high_freq_factor: 4 } },
    { ropeScaling: { factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalContextLength: 64 } },
  ],
  [
    { rope_scaling: { rope_type: "yarn", original_max_position_embeddings: 16, beta_slow: 2, truncate: false } },
    {
      // 64 tokens from 16; without a length it is 0.1 ln(4) + 1.
      contextLength: 64,
      ropeScaling: {
        ...{ factor: 4, originalContextLength: 16, betaFast: 32, betaSlow: 2, truncate: false },
        attentionFactor: 1.1386294361119891,
      },
    },
  ],
  [
    { rope_scaling: { rope_type: "yarn", factor: 4, attention_factor: 0.5, beta_fast: 8 } },
    {
      contextLength: 256,
      ropeScaling: {
        ...{ factor: 4, originalContextLength: 64, betaFast: 8, betaSlow: 1, truncate: true },
        attentionFactor: 0.5,
      },
    },
  ],
  // DeepSeek's two lengths divide each other: (0.2 ln(4) + 1) / (0.1 ln(4) + 1); one alone is not used.
  [
    { rope_scaling: { rope_type: "yarn", factor: 4, mscale: 2, mscale_all_dim: 1 } },
    { ropeScaling: expect.objectContaining({ attentionFactor: 1.2772588722239782 / 1.1386294361119891 }) },
  ],
  [
    { rope_scaling: { rope_type: "yarn", factor: 4, mscale: 2 } },
    { ropeScaling: expect.objectContaining({ attentionFactor: 1.1386294361119891 }) },
  ],
  [
    { rope_scaling: { rope_type: "yarn", factor: 1 } },
    { ropeScaling: expect.objectContaining({ attentionFactor: 1 }), contextLength: 64 },
  ],
  [
    { rope_scaling: { rope_type: "yarn", factor: 0.5 } },
    { ropeScaling: expect.objectContaining({ attentionFactor: 1 }), contextLength: 64 },
  ],
  [{ rope_scaling: { rope_type: "yarn", factor: 1.51 } }, { contextLength: 96 }],
])("%j is read as %j", (change, expected) => {
  expect(parseModelConfig({ ...LLAMA, ...change })).toMatchObject(expected);
});

test.each([
  ["mixtral", "a mixture of experts"],
  ["dbrx", "a mixture of experts"],
  ["deepseek_v3", "a mixture of experts"],
  ["gpt_oss", "a mixture of experts"],
  ["llama4_text", "a mixture of experts"],
  ["gemma3n_text", "a model of more than text"],
  ["llava_next", "a model of more than text"],
  ["gptj", "rotary positions over a part of each head, or fused projections"],
  ["glm4", "rotary positions over a part of each head, or fused projections"],
  ["falcon_mamba", "layers without attention"],
  ["recurrent_gemma", "layers without attention"],
  ["qwen3_next", "layers without attention"],
])("%s does not load because it is %s", (model_type, obstacle) => {
  expect(() => parseModelConfig({ ...LLAMA, model_type })).toThrow(
    `model_type "${model_type}" (${obstacle}): supported`,
  );
});

test.each([
  ["a list", [], /it is not a JSON object/],
  ["null", null, /it is not a JSON object/],
  ["a number for a flag", { ...LLAMA, attention_bias: 0 }, /attention_bias must be true or false \(0\)/],
  ["a count of 0", { ...LLAMA, vocab_size: 0 }, /vocab_size must be a positive number \(0\)/],
  ["a token id with a fraction", { ...LLAMA, bos_token_id: 1.5 }, /bos_token_id must be a token id \(1\.5\)/],
  [
    "a list with a token id below 0",
    { ...LLAMA, eos_token_id: [1, -1] },
    /eos_token_id must be a token id \(\[1,-1\]\)/,
  ],
  ["null for a size", { ...LLAMA, hidden_size: null }, /hidden_size is missing/],
  [
    "layers before 0",
    { ...LLAMA, model_type: "qwen2", use_sliding_window: true, max_window_layers: -1 },
    /max_window_layers must be a whole number \(-1\)/,
  ],
  ["1001 layers", { ...LLAMA, num_hidden_layers: 1001 }, /num_hidden_layers must be at most 1000 \(1001\)/],
  [
    "a first layer of another kind",
    { ...LLAMA, layer_types: ["sliding_attention", "full_attention"] },
    /layer_types "sliding_attention"/,
  ],
  ["an object that is a list", { ...LLAMA, rope_scaling: [1] }, /rope_scaling must be an object \(\[1\]\)/],
])("%s in config.json is an error", (_, json, message) => {
  expect(() => parseModelConfig(json)).toThrow(message);
});

describe("families", () => {
  const parse = (change: object) => parseModelConfig({ ...LLAMA, ...change });
  const layerTypes = (text: string) =>
    [...text].map((letter) => (letter === "s" ? "sliding_attention" : "full_attention"));

  test("Gemma 3 of transformers 4 and 5 are one shape", () => {
    const sizes = { model_type: "gemma3_text", num_hidden_layers: 7, sliding_window: 8 };
    const old = { rope_theta: 1e6, rope_local_base_freq: 1e4, rope_scaling: { factor: 8, rope_type: "linear" } };
    const rope_parameters = {
      full_attention: { rope_type: "linear", factor: 8, rope_theta: 1e6 },
      sliding_attention: { rope_type: "default", rope_theta: 1e4 },
    };
    const [four, five] = [parse({ ...sizes, ...old }), parse({ ...sizes, rope_parameters })];
    expect(four).toEqual(five);
    expect(four).toMatchObject({
      headDim: 256,
      kvHeads: 4,
      tied: true,
      unitOffsetNorms: true,
      outputNorms: true,
      qkNorm: true,
      activation: "gelu_pytorch_tanh",
      layerTypes: layerTypes("sssssfs"),
      slidingWindow: 8,
      slidingRopeTheta: 1e4,
      ropeTheta: 1e6,
      ropeScaling: { factor: 8 },
      queryPreAttnScalar: 256,
    });
    expect(four.embeddingScale).toBeCloseTo(Math.sqrt(32), 12);
  });

  test("every published shape that has a fixture is read", () => {
    for (const name of ["gemma-3-270m", "gemma-3-1b-pt", "SmolLM3-3B", "Qwen2.5-3B", "Llama-3.2-1B"]) {
      const config = parseModelConfig(publishedConfig(name));
      expect(parseModelConfig(modelConfigJson(config)), name).toEqual(config);
    }
    const { layersWithoutRope, layers } = parseModelConfig(publishedConfig("SmolLM3-3B"));
    expect(layersWithoutRope).toEqual([3, 7, 11, 15, 19, 23, 27, 31, 35].filter((layer) => layer < layers));
  });

  test("YaRN lengthens the context by its factor", () => {
    const yarn = { rope_type: "yarn", factor: 4, original_max_position_embeddings: 64 };
    expect(parse({ rope_scaling: yarn })).toMatchObject({ contextLength: 256 });
    expect(parse({ rope_scaling: yarn, max_position_embeddings: 1000 })).toMatchObject({ contextLength: 1000 });
    expect(parse({ rope_scaling: { rope_type: "linear", factor: 4 } })).toMatchObject({ contextLength: 64 });
  });

  test("windows are on where the configuration turns them on", () => {
    const qwen = { model_type: "qwen2", num_hidden_layers: 4, max_window_layers: 1, sliding_window: 8 };
    expect(parse(qwen)).not.toHaveProperty("layerTypes");
    expect(parse({ ...qwen, use_sliding_window: true }).layerTypes).toEqual(layerTypes("fsss"));
    expect(parse({ ...qwen, use_sliding_window: true, layer_types: layerTypes("sfff") }).layerTypes).toEqual(
      layerTypes("sfff"),
    );
    expect(() => parse({ ...qwen, layer_types: layerTypes("sfff") })).toThrow(/need the width of the window/);
    const mistral = { model_type: "mistral", num_key_value_heads: 2 };
    expect(parse(mistral)).toMatchObject({ slidingWindow: 4096, layerTypes: layerTypes("ss") });
    expect(parse({ ...mistral, sliding_window: null }).layerTypes).toBeUndefined();
  });

  test("what the families cannot compute is refused", () => {
    const gemma = { model_type: "gemma3_text" };
    expect(() => parse({ ...gemma, final_logit_softcapping: 30 })).toThrow(
      /final_logit_softcapping 30: supported is null/,
    );
    expect(() => parse({ ...gemma, attn_logit_softcapping: 50 })).toThrow(/attn_logit_softcapping 50/);
    expect(() => parse({ ...gemma, use_bidirectional_attention: true })).toThrow(/use_bidirectional_attention true/);
    const rope_parameters = {
      sliding_attention: { rope_type: "linear", factor: 2, rope_theta: 10 },
      full_attention: {},
    };
    expect(() => parse({ ...gemma, rope_parameters })).toThrow(/sliding_attention\.rope_type "linear"/);
    expect(() => parse({ model_type: "smollm3", eos_token_id: 1, no_rope_layers: [1] })).toThrow(
      /no_rope_layers must have an entry for each of the 2 layers \(\[1\]\)/,
    );
    expect(() => parse({ model_type: "smollm3", eos_token_id: 1, no_rope_layers: [1, 2] })).toThrow(/no_rope_layers 2/);
  });

  test.each(ROPES)("rotary frequencies of %s are those of transformers", (_, { config, frequencies, factor }) => {
    const parsed = parseModelConfig(config);
    const own = ropeFrequencies(parsed);
    expect(own).toHaveLength(frequencies.length);
    for (const [i, frequency] of own.entries()) expect(frequency / frequencies[i]!).toBeCloseTo(1, 5);
    expect(ropeAttentionFactor(parsed)).toBeCloseTo(factor, 12);
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
    { rope_scaling: { type: "linear", factor: 3 }, attention_bias: true, mlp_bias: true },
    { rope_scaling: { type: "yarn", factor: 4, original_max_position_embeddings: 16, mscale: 2, mscale_all_dim: 1 } },
    { hidden_act: "gelu_pytorch_tanh" },
    { model_type: "mistral", num_key_value_heads: 2 },
    { model_type: "mistral", num_key_value_heads: 2, sliding_window: null },
    { model_type: "qwen2", use_sliding_window: true, max_window_layers: 1, sliding_window: 8 },
    { model_type: "qwen3", attention_bias: true, layer_types: ["full_attention", "full_attention"] },
    { model_type: "smollm3", eos_token_id: 1 },
    { model_type: "smollm3", eos_token_id: 1, no_rope_layers: [0, 1], use_sliding_window: true, sliding_window: 4 },
    { model_type: "gemma3_text" },
    { model_type: "gemma3_text", layer_types: ["full_attention", "full_attention"], query_pre_attn_scalar: 168 },
    { model_type: "gemma3_text", sliding_window_pattern: 2, rope_scaling: { rope_type: "linear", factor: 8 } },
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
