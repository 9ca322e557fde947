/** The layers that most families have: attention and a gated MLP, under Llama's names. */
import type { AttentionBlock } from "../blocks/attention_block.ts";
import type { GatedMlpBlock } from "../blocks/gated_mlp.ts";
import type { Layer } from "../blocks/kinds.ts";
import type { Output } from "../blocks/residual.ts";
import { type ModelConfig, ropeOf, windowOf } from "../config.ts";

/** Names of a layer's norms over the residual stream, in the order of the forward pass. */
interface LayerNorms {
  readonly input: string;
  readonly attentionOutput?: string;
  readonly middle: string;
  readonly mlpOutput?: string;
}

const NORMS: LayerNorms = { input: "input_layernorm", middle: "post_attention_layernorm" };
const WITH_OUTPUT_NORMS: LayerNorms = {
  input: "input_layernorm",
  attentionOutput: "post_attention_layernorm",
  middle: "pre_feedforward_layernorm",
  mlpOutput: "post_feedforward_layernorm",
};

/** The blocks of every layer of a shape. */
export function decoderLayers(config: ModelConfig): Layer[] {
  return Array.from({ length: config.layers }, (_, index) => ({
    index,
    blocks: [attentionBlock(config, index), mlpBlock(config, index)],
  }));
}

function attentionBlock(config: ModelConfig, layer: number): AttentionBlock {
  const { heads, kvHeads, headDim, queryPreAttnScalar = headDim } = config;
  const name = `model.layers.${layer}.self_attn`;
  const norms = normsOf(config);
  return {
    ...{ kind: "attention", layer, heads, kvHeads, headDim },
    inputNorm: `model.layers.${layer}.${norms.input}.weight`,
    tensors: { q: `${name}.q_proj`, k: `${name}.k_proj`, v: `${name}.v_proj` },
    qkv: { matrix: `${name}.qkv.weight`, bias: config.qkvBias ? `${name}.qkv.bias` : undefined },
    output: outputOf(layer, { module: "self_attn.o_proj", hasBias: config.outputBias, norm: norms.attentionOutput }),
    ...(config.qkNorm && { headNorms: { q: `${name}.q_norm.weight`, k: `${name}.k_norm.weight` } }),
    scale: 1 / Math.sqrt(queryPreAttnScalar),
    window: windowOf(config, layer),
    rope: ropeOf(config, layer),
  };
}

function mlpBlock(config: ModelConfig, layer: number): GatedMlpBlock {
  const name = `model.layers.${layer}.mlp`;
  const norms = normsOf(config);
  return {
    ...{ kind: "gated_mlp", layer, width: config.intermediateSize, activation: config.activation ?? "silu" },
    inputNorm: `model.layers.${layer}.${norms.middle}.weight`,
    tensors: { gate: `${name}.gate_proj`, up: `${name}.up_proj`, down: `${name}.down_proj` },
    gateUp: { matrix: `${name}.gate_up.weight`, bias: config.mlpBias ? `${name}.gate_up.bias` : undefined },
    output: outputOf(layer, { module: "mlp.down_proj", hasBias: config.mlpBias, norm: norms.mlpOutput }),
  };
}

function normsOf({ outputNorms }: ModelConfig): LayerNorms {
  return outputNorms ? WITH_OUTPUT_NORMS : NORMS;
}

function outputOf(
  layer: number,
  { module, hasBias, norm }: { module: string; hasBias: boolean | undefined; norm: string | undefined },
): Output {
  const name = `model.layers.${layer}`;
  return {
    matrix: `${name}.${module}.weight`,
    bias: hasBias ? `${name}.${module}.bias` : undefined,
    norm: norm === undefined ? undefined : `${name}.${norm}.weight`,
  };
}
