/** Facts that distinguish a layer: the names of its weights, what its attention sees, whether it rotates. */
import { layerNorms, type ModelConfig, ropeOf, windowOf } from "./files/config.ts";
import { WHOLE_SEQUENCE } from "./kernels/attention.ts";

/** A product and its bias, by the names of weights.ts. */
export interface Product {
  readonly matrix: string;
  readonly bias: string | undefined;
}

/** The product whose result is added to the residual stream, through a norm where the model has one there. */
export interface Output extends Product {
  readonly norm: string | undefined;
}

export interface Layer {
  readonly index: number;
  /** Name of a weight from its last part. */
  readonly name: (part: string) => string;
  readonly inputNorm: string;
  readonly qkv: Product;
  readonly attentionOutput: Output;
  /** The norm in front of the MLP. */
  readonly middleNorm: string;
  readonly gateUp: Product;
  readonly mlpOutput: Output;
  /** Tokens that attention sees, the token itself included. */
  readonly window: number;
  /** False where q and k are not rotated by position. */
  readonly rotates: boolean;
}

export function layersOf(config: ModelConfig): Layer[] {
  return Array.from({ length: config.layers }, (_, index) => layerOf(config, index));
}

function layerOf(config: ModelConfig, index: number): Layer {
  const name = (part: string) => `model.layers.${index}.${part}`;
  const ifAny = (part: string | undefined) => (part === undefined ? undefined : name(part));
  const product = (part: string, hasBias: boolean | undefined) => ({
    matrix: name(`${part}.weight`),
    bias: hasBias ? name(`${part}.bias`) : undefined,
  });
  const norms = layerNorms(config);
  return {
    index,
    name,
    inputNorm: name(norms.input),
    qkv: product("self_attn.qkv", config.qkvBias),
    attentionOutput: { ...product("self_attn.o_proj", config.outputBias), norm: ifAny(norms.attentionOutput) },
    middleNorm: name(norms.middle),
    gateUp: product("mlp.gate_up", config.mlpBias),
    mlpOutput: { ...product("mlp.down_proj", config.mlpBias), norm: ifAny(norms.mlpOutput) },
    window: Math.min(windowOf(config, index), WHOLE_SEQUENCE),
    rotates: ropeOf(config, index) !== undefined,
  };
}
