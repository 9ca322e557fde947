/**
 * A decoding step of a narrow model with everything between two attentions in one dispatch, the embedding in front of the first and a
 * small head behind the last: on software adapters the dispatches of so small a model cost more than its arithmetic. The same
 * results as layer by layer.
 */
import { type Buffer, SLICE_ALIGNMENT_BYTES } from "../../compute/device.ts";
import { multipliesByLanes } from "../../compute/matmul/matmul.ts";
import type { ModelConfig } from "../files/config.ts";
import { attentionStep, STEP_MULTIPLE, WIDEST_STEP } from "../kernels/attention_step.ts";
import { CHAIN_ROWS, decodeRows, STAGE } from "../kernels/decode_rows.ts";
import type { Product } from "../layers.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import { FINAL_NORM, type Transformer } from "../transformer.ts";
import { EMBEDDING, type Segment, type Weights } from "../weights.ts";
import { attendStep } from "./attend_step.ts";
import type { StepInput } from "./step_input.ts";

/** Up to this width a chain is faster for any number of rows. */
const WIDEST_ALONE = 128;
/** Up to this width it is faster for more than CHAIN_ROWS rows, which keep several cores busy. */
const WIDEST_CHAINED = 512;

/** Fields of the shape that the chain's kernels compute with. With another field present the model decodes layer by layer. */
const KNOWN: Readonly<Record<keyof ModelConfig, boolean>> = {
  architecture: true,
  vocabSize: true,
  hiddenSize: true,
  intermediateSize: true,
  layers: true,
  heads: true,
  kvHeads: true,
  headDim: true,
  contextLength: true,
  rmsNormEps: true,
  ropeTheta: true,
  ropeScaling: true,
  tied: true,
  bosTokenId: true,
  padTokenId: true,
  eosTokenIds: true,
  queryPreAttnScalar: true,
  qkNorm: false,
  qkvBias: false,
  outputBias: false,
  mlpBias: false,
  activation: false,
  unitOffsetNorms: false,
  outputNorms: false,
  embeddingScale: false,
  slidingWindow: false,
  layerTypes: false,
  slidingRopeTheta: false,
  layersWithoutRope: false,
  scoreHead: false,
};

/** The buffers of a step, and the stages [first, last) that run. */
interface BetweenAttention {
  readonly segments: readonly Segment[];
  readonly tokens: Buffer;
  readonly state: Buffer;
  /** Queries, keys and values of the next layer; with `takesHead` the logits. */
  readonly qkv: Buffer;
  readonly parts: Omit<ReturnType<typeof layOutState>, "size">;
  readonly first: number;
  readonly last: number;
  readonly takesHead?: boolean;
}

export class DecodeChain {
  private readonly model: Transformer;

  constructor(model: Transformer) {
    this.model = model;
  }

  /** Whether the chain's kernels take these weights and rows: narrow, and each kind within one binding. */
  fits(weights: Weights, rows: number): boolean {
    const { device, config } = weights;
    if (!multipliesByLanes(device)) return false;
    const { hiddenSize, intermediateSize, headDim } = config;
    const segments = segmentsOf(weights, rows);
    const keepsCoresBusy = segments.every((segment) => segment.rows > CHAIN_ROWS);
    const isNarrow = hiddenSize <= (keepsCoresBusy ? WIDEST_CHAINED : WIDEST_ALONE) && headDim <= WIDEST_STEP;
    const isWhole = hiddenSize % 4 === 0 && intermediateSize % 4 === 0 && headDim % STEP_MULTIPLE === 0;
    const isTogether = segments.every(
      ({ weights: { plain } }) => plain?.values.shards.length === 1 && plain.transposedLayout?.shardBytes.length === 1,
    );
    const isKnown = Object.entries(config).every(([key, value]) => KNOWN[key as keyof ModelConfig] || !value);
    const isBindable = layOutState(config, rows).size * 4 <= device.info.limits.maxBindingBytes;
    return isNarrow && isWhole && isTogether && isKnown && isBindable;
  }

  /**
   * Whether the last kernel takes the final norm and the head too, with their bits. Not where the head is larger than a layer: one core
   * multiplies 32 rows by all of it.
   */
  takesHead(weights: Weights, rows: number): boolean {
    const { vocabSize, hiddenSize: C, intermediateSize, heads, headDim } = this.model.config;
    const columns = logitStride(vocabSize);
    const layer = C * (heads * headDim + 3 * intermediateSize + this.model.qkvWidth);
    const isSmall = columns * C <= layer && logitWindows(this.model, rows).length === 1;
    const holdsHead = ({ weights: { plain } }: Segment) =>
      plain?.transposedLayout?.entries.get(this.model.head)?.columns === columns;
    return isSmall && segmentsOf(weights, rows).every(holdsHead);
  }

  /**
   * Hidden states of each row's last token, [rows, C].
   * @param logits [rows, V], where the chain takes the head
   */
  run(weights: Weights, at: StepInput, logits?: Buffer): Buffer {
    const { rows, scratch } = at;
    const { config } = this.model;
    const { layers, hiddenSize: C, heads, headDim } = config;
    const { size, ...parts } = layOutState(config, rows.count);
    const state = scratch.floats(size, "decoding state");
    const qkv = scratch.floats(rows.count * this.model.qkvWidth, "qkv");
    const x = state.slice(parts.x_at * 4, rows.count * C * 4);
    const attended = state.slice(parts.attended_at * 4, rows.count * heads * headDim * 4);
    const io = { segments: segmentsOf(weights, rows.count), tokens: rows.next, state, parts };
    this.between(-1, { ...io, qkv, first: STAGE.qkv, last: STAGE.end });
    for (let layer = 0; layer < layers; layer++) {
      attendStep(this.model, attentionStep, { ...at, layer: this.model.layers[layer]!, qkv, out: attended });
      if (layer + 1 < layers) this.between(layer, { ...io, qkv, first: STAGE.output, last: STAGE.end });
    }
    const last = { ...io, qkv, first: STAGE.output, last: STAGE.qkv };
    this.between(layers - 1, logits ? { ...last, qkv: logits, last: STAGE.end, takesHead: true } : last);
    return x;
  }

  /** Records the dispatches between the attention of `layer` and that of the next, one for each policy. */
  private between(layer: number, io: BetweenAttention): void {
    const { segments, tokens, state, qkv, parts, first, last, takesHead } = io;
    for (const { weights, rows, first: first_row } of segments)
      this.model.device.dispatch(decodeRows, {
        buffers: {
          matrices: weights.plain!.transposed()!.shards[0]!,
          vectors: weights.values.shards[0]!,
          ...{ tokens, state, qkv },
        },
        params: {
          ...this.params(weights, layer),
          ...parts,
          ...(takesHead && this.headParams(weights)),
          ...{ first, last, rows, first_row },
        },
      });
  }

  /** The final norm and the head in place of the next layer's norm and qkv. */
  private headParams(weights: Weights) {
    const { head, config } = this.model;
    return {
      qkv: logitStride(config.vocabSize),
      qkv_at: weights.plain!.transposedLayout!.entries.get(head)!.byteOffset / 16,
      next_norm_at: weights.values.entry(FINAL_NORM).byteOffset / 4,
    };
  }

  /** Offsets of the weights of `layer` and of the first ones of the next: -1 is the embedding, the last has no next one. */
  private params(weights: Weights, layer: number) {
    const { hiddenSize, intermediateSize, heads, headDim, layers, rmsNormEps } = this.model.config;
    const matrix = ({ matrix: name }: Product) => weights.plain!.transposedLayout!.entries.get(name)!.byteOffset / 16;
    const vector = (name: string) => weights.values.entry(name).byteOffset / 4;
    const current = this.model.layers[Math.max(layer, 0)]!;
    const next = this.model.layers[Math.min(layer + 1, layers - 1)]!;
    return {
      hidden: hiddenSize,
      inner: intermediateSize,
      attended: heads * headDim,
      qkv: this.model.qkvWidth,
      o_at: matrix(current.attentionOutput),
      gate_up_at: matrix(current.gateUp),
      down_at: matrix(current.mlpOutput),
      qkv_at: matrix(next.qkv),
      norm_at: vector(current.middleNorm),
      next_norm_at: vector(next.inputNorm),
      epsilon: rmsNormEps,
      embeds: layer < 0 ? 1 : 0,
      embed_at: vector(EMBEDDING),
    };
  }
}

function segmentsOf(weights: Weights, rows: number): readonly Segment[] {
  return weights.segments ?? [{ weights, first: 0, rows }];
}

/** Offsets of the parts of a chain's state, in elements. Each part can be bound as a slice. */
function layOutState({ hiddenSize: C, intermediateSize: F, heads, headDim }: ModelConfig, rows: number) {
  const ALIGNMENT = SLICE_ALIGNMENT_BYTES / 4;
  const aligned = (elements: number) => Math.ceil(elements / ALIGNMENT) * ALIGNMENT;
  const attended_at = aligned(rows * C);
  const normed_at = attended_at + aligned(rows * heads * headDim);
  const wide_at = normed_at + aligned(rows * C);
  return { x_at: 0, attended_at, normed_at, wide_at, size: wide_at + rows * 2 * F };
}
