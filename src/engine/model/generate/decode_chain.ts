/**
 * A decoding step of a narrow model with everything between two attentions in one dispatch, the embedding in front of the first and a
 * small head behind the last: on software adapters the dispatches of so small a model cost more than its arithmetic. The same
 * results as layer by layer.
 */
import { type Buffer, SLICE_ALIGNMENT_BYTES } from "../../compute/device.ts";
import { multipliesByLanes } from "../../compute/matmul/matmul.ts";
import type { AttentionBlock } from "../blocks/attention_block.ts";
import { attendStep } from "../blocks/attention_step.ts";
import type { AnyBlock } from "../blocks/block.ts";
import type { GatedMlpBlock } from "../blocks/gated_mlp.ts";
import { qkvWidth } from "../blocks/qkv_layout.ts";
import { attentionStep, STEP_MULTIPLE, WIDEST_STEP } from "../kernels/attention_step.ts";
import { CHAIN_ROWS, decodeRows, STAGE } from "../kernels/decode_rows.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import type { Transformer } from "../transformer.ts";
import { EMBEDDING, FINAL_NORM, type Segment, type Weights } from "../weights.ts";
import { layerCache } from "./key_value_cache.ts";
import type { StepInput } from "./step_input.ts";

/** Up to this width a chain is faster for any number of rows. */
const WIDEST_ALONE = 128;
/** Up to this width it is faster for more than CHAIN_ROWS rows, which keep several cores busy. */
const WIDEST_CHAINED = 512;

/** A layer that the chain's kernels compute: attention and a gated MLP of equal shapes, without anything in between. */
interface PlainLayer {
  readonly attention: AttentionBlock;
  readonly mlp: GatedMlpBlock;
}

/** The layers of a model that the chain's kernels compute; undefined where one of them has more, or another shape. */
function plainLayers({ config, layers }: Transformer): readonly PlainLayer[] | undefined {
  if (config.embeddingScale !== undefined || config.unitOffsetNorms) return undefined;
  const found = layers.flatMap(({ blocks }): PlainLayer[] => {
    const [attention, mlp, ...more] = blocks;
    const isPair = attention?.kind === "attention" && mlp?.kind === "gated_mlp" && more.length === 0;
    return isPair && isPlain(attention) && isPlainMlp(mlp) ? [{ attention, mlp }] : [];
  });
  const shapeOf = ({ attention, mlp }: PlainLayer) =>
    `${attention.heads} ${attention.kvHeads} ${attention.headDim} ${mlp.width} ${attention.scale} ${JSON.stringify(attention.rope)}`;
  return found.length === layers.length && new Set(found.map(shapeOf)).size === 1 ? found : undefined;
}

const adds = ({ output: { bias, norm } }: AnyBlock) => bias === undefined && norm === undefined;

function isPlain(block: AttentionBlock): boolean {
  const { headNorms, qkv, window, rope } = block;
  return adds(block) && !headNorms && qkv.bias === undefined && window === Number.POSITIVE_INFINITY && !!rope;
}

function isPlainMlp(block: GatedMlpBlock): boolean {
  return adds(block) && block.gateUp.bias === undefined && block.activation === "silu";
}

/** Widths of a row: of the residual stream, of the MLP, of attention's result and of its projection. */
interface ChainShape {
  readonly hidden: number;
  readonly inner: number;
  readonly attended: number;
  readonly qkv: number;
}

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
  private readonly layers: readonly PlainLayer[] | undefined;

  constructor(model: Transformer) {
    this.model = model;
    this.layers = plainLayers(model);
  }

  /** Widths of every layer: there is a chain only where they are equal. */
  private get shape(): ChainShape {
    const { attention, mlp } = this.layers![0]!;
    const { heads, headDim } = attention;
    return {
      hidden: this.model.config.hiddenSize,
      inner: mlp.width,
      attended: heads * headDim,
      qkv: qkvWidth(attention),
    };
  }

  /** Whether the chain's kernels take these weights and rows: narrow, and each kind within one binding. */
  fits(weights: Weights, rows: number): boolean {
    const { device } = weights;
    if (!this.layers || !multipliesByLanes(device)) return false;
    const { hidden, inner } = this.shape;
    const { headDim } = this.layers[0]!.attention;
    const segments = segmentsOf(weights, rows);
    const keepsCoresBusy = segments.every((segment) => segment.rows > CHAIN_ROWS);
    const isNarrow = hidden <= (keepsCoresBusy ? WIDEST_CHAINED : WIDEST_ALONE) && headDim <= WIDEST_STEP;
    const isWhole = hidden % 4 === 0 && inner % 4 === 0 && headDim % STEP_MULTIPLE === 0;
    const isTogether = segments.every(
      ({ weights: { plain } }) => plain?.values.shards.length === 1 && plain.transposedLayout?.shardBytes.length === 1,
    );
    const isBindable = layOutState(this.shape, rows).size * 4 <= device.info.limits.maxBindingBytes;
    return isNarrow && isWhole && isTogether && isBindable;
  }

  /**
   * Whether the last kernel takes the final norm and the head too, with their bits. Not where the head is larger than a layer: one core
   * multiplies 32 rows by all of it.
   */
  takesHead(weights: Weights, rows: number): boolean {
    const { hidden: C, inner, attended, qkv } = this.shape;
    const columns = logitStride(this.model.config.vocabSize);
    const layer = C * (attended + 3 * inner + qkv);
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
    const { hidden: C, attended: attendedWidth, qkv: width } = this.shape;
    const layers = this.layers!.length;
    const { size, ...parts } = layOutState(this.shape, rows.count);
    const state = scratch.floats(size, "decoding state");
    const qkv = scratch.floats(rows.count * width, "qkv");
    const x = state.slice(parts.x_at * 4, rows.count * C * 4);
    const attended = state.slice(parts.attended_at * 4, rows.count * attendedWidth * 4);
    const io = { segments: segmentsOf(weights, rows.count), tokens: rows.next, state, parts };
    this.between(-1, { ...io, qkv, first: STAGE.qkv, last: STAGE.end });
    for (let layer = 0; layer < layers; layer++) {
      const block = this.layers![layer]!.attention;
      const cache = layerCache(at.cache, block.layer);
      attendStep(this.model.context, attentionStep, { ...at, cache, block, qkv, out: attended });
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
    const layers = this.layers!;
    const matrix = (name: string) => weights.plain!.transposedLayout!.entries.get(name)!.byteOffset / 16;
    const vector = (name: string) => weights.values.entry(name).byteOffset / 4;
    const current = layers[Math.max(layer, 0)]!;
    const next = layers[Math.min(layer + 1, layers.length - 1)]!;
    return {
      ...this.shape,
      o_at: matrix(current.attention.output.matrix),
      gate_up_at: matrix(current.mlp.gateUp.matrix),
      down_at: matrix(current.mlp.output.matrix),
      qkv_at: matrix(next.attention.qkv.matrix),
      norm_at: vector(current.mlp.inputNorm),
      next_norm_at: vector(next.attention.inputNorm),
      epsilon: this.model.norms.epsilon,
      embeds: layer < 0 ? 1 : 0,
      embed_at: vector(EMBEDDING),
    };
  }
}

function segmentsOf(weights: Weights, rows: number): readonly Segment[] {
  return weights.segments ?? [{ weights, first: 0, rows }];
}

/** Offsets of the parts of a chain's state, in elements. Each part can be bound as a slice. */
function layOutState({ hidden: C, inner: F, attended }: ChainShape, rows: number) {
  const ALIGNMENT = SLICE_ALIGNMENT_BYTES / 4;
  const aligned = (elements: number) => Math.ceil(elements / ALIGNMENT) * ALIGNMENT;
  const attended_at = aligned(rows * C);
  const normed_at = attended_at + aligned(rows * attended);
  const wide_at = normed_at + aligned(rows * C);
  return { x_at: 0, attended_at, normed_at, wide_at, size: wide_at + rows * 2 * F };
}
