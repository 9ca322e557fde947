/** One step of decoding: a token for each of many sequences, from the cache of those before it. */
import { type Buffer, type Device, SLICE_ALIGNMENT_BYTES } from "../../compute/device.ts";
import { fusesInput } from "../../compute/matmul/matmul.ts";
import type { ModelConfig } from "../files/config.ts";
import { logitStride, logitWindows } from "../head.ts";
import { attentionStep, STEP_MULTIPLE, WIDEST_STEP } from "../kernels/attention_step.ts";
import { cacheAppend } from "../kernels/cache.ts";
import { CHAIN_ROWS, decodeRows, STAGE } from "../kernels/decode_rows.ts";
import { ropeAppend } from "../kernels/rope_append.ts";
import { chooseSample } from "../kernels/sample.ts";
import { swiglu } from "../kernels/swiglu.ts";
import { Scratch } from "../scratch.ts";
import { FINAL_NORM, type LayerName, layerNames, type Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

/** Keys and values of every slot. */
export interface Cache {
  readonly slots: number;
  readonly maxLength: number;
  /** Per layer, [slots, maxLength, KV D]. */
  readonly keys: readonly Buffer[];
  readonly values: readonly Buffer[];
}

/** Per-row inputs of the steps of one chunk. */
export interface Rows {
  readonly count: number;
  readonly slots: Buffer;
  readonly positions: Buffer;
  readonly seeds: Buffer;
  readonly settings: Buffer;
  readonly next: Buffer;
  readonly tokens: Buffer;
  readonly logprobs: Buffer;
  readonly steps: number;
}

export class Decoder {
  private readonly model: Transformer;
  private readonly device: Device;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
  }

  /** One token for every row: feeds in each row's last one and draws the next. */
  step(weights: Weights, at: { cache: Cache; rows: Rows; shift: number }): void {
    const { rows, shift } = at;
    const scratch = new Scratch(this.device);
    const run = fitsChain(weights, rows.count) ? this.chain : this.layers;
    const hidden = run.call(this, weights, { ...at, scratch });
    this.draw(weights, { hidden, rows, shift, scratch });
    scratch.release();
  }

  /** Hidden states of each row's last token, a kernel at a time. */
  private layers(
    weights: Weights,
    at: { cache: Cache; rows: Rows; shift: number; scratch: Scratch },
  ): Buffer {
    const { hiddenSize: C, layers } = this.model.config;
    let x = at.scratch.floats(at.rows.count * C, "residual");
    weights.embed({ tokens: at.rows.next, out: x, count: at.rows.count });
    for (let layer = 0; layer < layers; layer++) x = this.layer(weights, { ...at, layer, x });
    return x;
  }

  /** The same with all that lies between two attentions in one dispatch. */
  private chain(weights: Weights, at: { cache: Cache; rows: Rows; shift: number; scratch: Scratch }): Buffer {
    const { rows, scratch } = at;
    const { layers, hiddenSize: C, heads, headDim } = this.model.config;
    const { size, ...parts } = layOutState(this.model.config, rows.count);
    const state = scratch.floats(size, "decoding state");
    const qkv = scratch.floats(rows.count * this.model.qkvWidth, "qkv");
    const x = state.slice(parts.x_at * 4, rows.count * C * 4);
    const attended = state.slice(parts.attended_at * 4, rows.count * heads * headDim * 4);
    weights.embed({ tokens: rows.next, out: x, count: rows.count });
    const between = (layer: number, range: { first: number; last: number }) =>
      this.device.dispatch(decodeRows, {
        buffers: {
          matrices: weights.transposed()!.shards[0]!,
          vectors: weights.values.shards[0]!,
          state,
          qkv,
        },
        params: { ...this.chainParams(weights, layer), ...parts, ...range, rows: rows.count },
      });
    between(-1, { first: STAGE.qkv, last: STAGE.end });
    for (let layer = 0; layer < layers; layer++) {
      this.attendOwn({ ...at, layer, qkv, out: attended });
      between(layer, { first: STAGE.output, last: layer + 1 < layers ? STAGE.end : STAGE.qkv });
    }
    return x;
  }

  /** Each row's token into the cache, and its query against all that is there. */
  private attendOwn(at: {
    cache: Cache;
    layer: number;
    qkv: Buffer;
    rows: Rows;
    shift: number;
    out: Buffer;
  }): void {
    const { cache, layer, rows, shift, qkv, out } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(attentionStep, {
      buffers: {
        qkv,
        angles: this.model.angles,
        slots: rows.slots,
        positions: rows.positions,
        keys: cache.keys[layer]!,
        values: cache.values[layer]!,
        out,
      },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        max_length: cache.maxLength,
        shift,
        scale: 1 / Math.sqrt(headDim),
      },
      constants: this.model.attention.decodeConstants,
    });
  }

  /** Where the weights of a layer, and the first ones of the next, lie. There is none before the first or after the last. */
  private chainParams(weights: Weights, layer: number) {
    const { hiddenSize, intermediateSize, heads, headDim, layers, rmsNormEps } = this.model.config;
    const matrix = (of: number, name: string) =>
      weights.transposedLayout!.entries.get(layerNames(of)(name))!.byteOffset / 16;
    const vector = (of: number, name: string) => weights.values.entry(layerNames(of)(name)).byteOffset / 4;
    const [own, next] = [Math.max(layer, 0), Math.min(layer + 1, layers - 1)];
    return {
      hidden: hiddenSize,
      inner: intermediateSize,
      attended: heads * headDim,
      qkv: this.model.qkvWidth,
      o_at: matrix(own, "self_attn.o_proj.weight"),
      gate_up_at: matrix(own, "mlp.gate_up.weight"),
      down_at: matrix(own, "mlp.down_proj.weight"),
      qkv_at: matrix(next, "self_attn.qkv.weight"),
      norm_at: vector(own, "post_attention_layernorm.weight"),
      next_norm_at: vector(next, "input_layernorm.weight"),
      epsilon: rmsNormEps,
    };
  }

  private layer(
    weights: Weights,
    at: { cache: Cache; rows: Rows; shift: number; layer: number; x: Buffer; scratch: Scratch },
  ): Buffer {
    const { rows, layer, x, scratch } = at;
    const { hiddenSize: C, intermediateSize: F } = this.model.config;
    const [name, count] = [layerNames(layer), rows.count];
    const attended = this.attend(weights, { ...at, name });
    const middle = scratch.floats(count * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: count, addend: x });
    const gateUp = scratch.floats(count * 2 * F, "gate and up");
    this.normAndApply(weights, {
      norm: name("post_attention_layernorm.weight"),
      matrix: name("mlp.gate_up.weight"),
      x: middle,
      y: gateUp,
      rows: count,
      scratch,
    });
    const out = scratch.floats(count * C, "residual");
    const down = name("mlp.down_proj.weight");
    if (weights.fusesInput(down, count)) {
      weights.apply(down, { x: gateUp, y: out, m: count, addend: middle, input: { kind: "swiglu" } });
      return out;
    }
    const active = scratch.floats(count * F, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows: count, width: F } });
    weights.apply(down, { x: active, y: out, m: count, addend: middle });
    return out;
  }

  private attend(
    weights: Weights,
    at: {
      cache: Cache;
      rows: Rows;
      shift: number;
      layer: number;
      x: Buffer;
      scratch: Scratch;
      name: LayerName;
    },
  ): Buffer {
    const { rows, layer, x, scratch, cache, shift, name } = at;
    const { heads, headDim, qkNorm, qkvBias } = this.model.config;
    const count = rows.count;
    const raw = scratch.floats(count * this.model.qkvWidth, "qkv");
    const norm = name("input_layernorm.weight");
    this.normAndApply(weights, {
      norm,
      matrix: name("self_attn.qkv.weight"),
      x,
      y: raw,
      rows: count,
      scratch,
    });
    if (qkvBias) this.model.addBias(weights, { name, qkv: raw, rows: count });
    const qkv = qkNorm ? this.model.normHeads(weights, { name, qkvRaw: raw, rows: count, scratch }).qkv : raw;
    this.turnAndAppend({ cache, layer, qkv, rows, shift });
    const attended = scratch.floats(count * heads * headDim, "attention output");
    this.attendCache({ cache, layer, qkv, rows, shift, out: attended });
    return attended;
  }

  /** Each row's query against its slot of the cache. */
  private attendCache(at: {
    cache: Cache;
    layer: number;
    qkv: Buffer;
    rows: Rows;
    shift: number;
    out: Buffer;
  }): void {
    const { cache, layer, rows, shift } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(this.model.attention.decode, {
      buffers: {
        q: at.qkv,
        keys: cache.keys[layer]!,
        values: cache.values[layer]!,
        slots: rows.slots,
        positions: rows.positions,
        out: at.out,
      },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        q_stride: this.model.qkvWidth,
        q_offset: 0,
        max_length: cache.maxLength,
        shift,
        scale: 1 / Math.sqrt(headDim),
      },
      constants: this.model.attention.decodeConstants,
    });
  }

  /** y = norm(x) W^T. */
  private normAndApply(
    weights: Weights,
    at: {
      norm: string;
      matrix: string;
      x: Buffer;
      y: Buffer;
      rows: number;
      scratch: Scratch;
      stride?: number;
    },
  ): void {
    const { norm: name, matrix, x, y, rows, scratch, stride } = at;
    const { normed } = this.model.norm(weights, { name, x, rows, scratch });
    weights.apply(matrix, { x: normed, y, m: rows, stride });
  }

  private turnAndAppend(at: { cache: Cache; layer: number; qkv: Buffer; rows: Rows; shift: number }): void {
    const { cache, layer, rows } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(ropeAppend, {
      buffers: {
        slots: rows.slots,
        positions: rows.positions,
        angles: this.model.angles,
        qkv: at.qkv,
        keys: cache.keys[layer]!,
        values: cache.values[layer]!,
      },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        width: headDim,
        max_length: cache.maxLength,
        shift: at.shift,
      },
    });
  }

  /** Keys and values of prompt tokens into the cache. */
  append(at: {
    cache: Cache;
    layer: number;
    qkv: Buffer;
    rows: number;
    slots: Buffer;
    positions: Buffer;
    shift: number;
  }): void {
    const { cache, layer, qkv } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(cacheAppend, {
      buffers: {
        k: qkv,
        v: qkv,
        slots: at.slots,
        positions: at.positions,
        keys: cache.keys[layer]!,
        values: cache.values[layer]!,
      },
      params: {
        rows: at.rows,
        width: kvHeads * headDim,
        k_stride: this.model.qkvWidth,
        k_offset: heads * headDim,
        v_stride: this.model.qkvWidth,
        v_offset: (heads + kvHeads) * headDim,
        max_length: cache.maxLength,
        shift: at.shift,
      },
    });
  }

  /** Norm, logits and a token for each row of hidden states. */
  draw(weights: Weights, at: { hidden: Buffer; rows: Rows; shift: number; scratch: Scratch }): void {
    const { rows, shift, scratch } = at;
    const { vocabSize } = this.model.config;
    const stride = logitStride(vocabSize);
    const windows = logitWindows(this.model, rows.count);
    const logits = scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
    const width = this.model.config.hiddenSize * 4;
    for (const window of windows) {
      this.normAndApply(weights, {
        norm: FINAL_NORM,
        matrix: this.model.head,
        x: at.hidden.slice(window.first * width, window.rows * width),
        y: logits,
        rows: window.rows,
        stride,
        scratch,
      });
      this.device.dispatch(chooseSample(this.device.info), {
        buffers: {
          logits,
          seeds: rows.seeds,
          positions: rows.positions,
          settings: rows.settings,
          next: rows.next,
          tokens: rows.tokens,
          logprobs: rows.logprobs,
        },
        params: {
          rows: window.rows,
          first_row: window.first,
          vocabulary: vocabSize,
          stride,
          shift,
          history_stride: rows.steps,
        },
      });
    }
  }
}

/** Up to this width a chain is faster at any number of rows; above it, where two cores have a block of rows each. */
const WIDEST_ALONE = 128;
/** Above it, nothing was gained by a chain. */
const WIDEST_CHAINED = 512;

/** Whether the kernels of a chain take these weights: narrow, and all within reach of one binding. */
function fitsChain({ device, config, layout, transposedLayout }: Weights, rows: number): boolean {
  if (!fusesInput(device)) return false;
  const { hiddenSize, intermediateSize, headDim, qkNorm, qkvBias } = config;
  const widest = rows > CHAIN_ROWS ? WIDEST_CHAINED : WIDEST_ALONE;
  const isNarrow = hiddenSize <= widest && headDim <= WIDEST_STEP;
  const isWhole = hiddenSize % 4 === 0 && intermediateSize % 4 === 0 && headDim % STEP_MULTIPLE === 0;
  const isTogether = layout.shardBytes.length === 1 && transposedLayout?.shardBytes.length === 1;
  return isNarrow && isWhole && isTogether && !qkNorm && !qkvBias;
}

/** Where the parts of a chain's state lie, in elements; each may be bound as a slice. */
function layOutState({ hiddenSize: C, intermediateSize: F, heads, headDim }: ModelConfig, rows: number) {
  const ALIGNMENT = SLICE_ALIGNMENT_BYTES / 4;
  const aligned = (elements: number) => Math.ceil(elements / ALIGNMENT) * ALIGNMENT;
  const attended_at = aligned(rows * C);
  const normed_at = attended_at + aligned(rows * heads * headDim);
  const wide_at = normed_at + aligned(rows * C);
  return { x_at: 0, attended_at, normed_at, wide_at, size: wide_at + rows * 2 * F };
}
