/**
 * One step of decoding: a token for each of many sequences, from the cache of its earlier tokens. The kernels of a step:
 *
 *     embedding; each layer: rms_norm, matmul (qkv), [bias, head norms], rope_append, attention_decode,
 *     matmul (output), rms_norm, matmul (gate, up), swiglu, matmul (down); rms_norm, matmul (logits), sample
 *
 * On software adapters narrow models take fewer, larger ones: decode_chain.ts.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { WHOLE_SEQUENCE } from "../kernels/attention.ts";
import { ropeAppend } from "../kernels/rope_append.ts";
import { chooseSample } from "../kernels/sample.ts";
import { swiglu } from "../kernels/swiglu.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import { attentionScale } from "../qkv_layout.ts";
import type { RowRun } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import { FINAL_NORM, INPUT_NORM, type LayerName, layerNames, MIDDLE_NORM, type Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { DecodeChain } from "./decode_chain.ts";
import { cacheBuffers, type DecodeRows, type StepInput } from "./step_input.ts";

type LayerInput = StepInput & { readonly layer: number; readonly name: LayerName; readonly x: Buffer };

export class DecodeStep {
  private readonly model: Transformer;
  private readonly device: Device;
  private readonly chain: DecodeChain;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
    this.chain = new DecodeChain(model);
  }

  /** Feeds in each row's last token and draws the next. Records only. */
  step(weights: Weights, at: Omit<StepInput, "scratch">): void {
    const scratch = new Scratch(this.device);
    const input = { ...at, scratch };
    const isChained = this.chain.fits(weights, at.rows.count);
    const hidden = isChained ? this.chain.run(weights, input) : this.layers(weights, input);
    this.draw(weights, { ...input, hidden });
    scratch.release();
  }

  /** Hidden states of each row's last token, [rows, C]. */
  private layers(weights: Weights, at: StepInput): Buffer {
    const { rows, scratch: outer } = at;
    const residual = () => outer.floats(rows.count * this.model.config.hiddenSize, "residual");
    let x = residual();
    weights.embed({ tokens: rows.next, out: x, count: rows.count });
    for (let layer = 0; layer < this.model.config.layers; layer++) {
      const [name, out] = [layerNames(layer), residual()];
      Scratch.during(this.device, (scratch) => {
        const middle = this.attend(weights, { ...at, scratch, layer, name, x });
        this.mlp(weights, { ...at, scratch, layer, name, x: middle, out });
      });
      outer.free(x);
      x = out;
    }
    return x;
  }

  /** x + attention(norm(x)) W_o^T. */
  private attend(weights: Weights, at: LayerInput): Buffer {
    const { rows, x, scratch, name } = at;
    const { hiddenSize: C, heads, headDim } = this.model.config;
    const count = rows.count;
    const qkv = this.project(weights, at);
    this.rotateAndAppend(at, qkv);
    const attended = scratch.floats(count * heads * headDim, "attention output");
    this.attendCache(at, { qkv, out: attended });
    const middle = scratch.floats(count * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: count, addend: x });
    return middle;
  }

  /** q, k and v of each row, not rotated. */
  private project(weights: Weights, { rows: { count }, x, scratch, name }: LayerInput): Buffer {
    const { model } = this;
    const qkv = scratch.floats(count * model.qkvWidth, "qkv");
    const { normed } = model.norm(weights, { name: name(INPUT_NORM), x, rows: count, scratch });
    weights.apply(name("self_attn.qkv.weight"), { x: normed, y: qkv, m: count });
    if (model.config.qkvBias) model.addBias(weights, { name, qkv, rows: count });
    if (!model.config.qkNorm) return qkv;
    return model.normHeads(weights, { name, qkvRaw: qkv, rows: count, scratch }).qkv;
  }

  /** Rotates q and k by position, and writes k and v into the cache. */
  private rotateAndAppend({ cache, layer, rows, shift }: LayerInput, qkv: Buffer): void {
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(ropeAppend[cache.dtype], {
      buffers: { ...cacheBuffers({ cache, layer, rows }), angles: this.model.angles, qkv },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        width: headDim,
        row_pages: rows.rowPages,
        shift,
        rotates: 1,
      },
    });
  }

  /** Attention of each row's query to its keys in the cache. */
  private attendCache({ cache, layer, rows, shift }: LayerInput, io: { qkv: Buffer; out: Buffer }): void {
    const { config, qkvWidth, attention } = this.model;
    this.device.dispatch(attention.decode[cache.dtype], {
      buffers: { ...cacheBuffers({ cache, layer, rows }), q: io.qkv, out: io.out },
      params: {
        rows: rows.count,
        heads: config.heads,
        key_heads: config.kvHeads,
        q_stride: qkvWidth,
        q_offset: 0,
        row_pages: rows.rowPages,
        shift,
        window: WHOLE_SEQUENCE,
        scale: attentionScale(config),
      },
      constants: attention.decodeConstants,
    });
  }

  /** out = x + mlp(norm(x)). */
  private mlp(weights: Weights, { rows: { count }, x, out, scratch, name }: LayerInput & { out: Buffer }): void {
    const { intermediateSize: F } = this.model.config;
    const gateUp = scratch.floats(count * 2 * F, "gate and up");
    const { normed } = this.model.norm(weights, { name: name(MIDDLE_NORM), x, rows: count, scratch });
    weights.apply(name("mlp.gate_up.weight"), { x: normed, y: gateUp, m: count });
    const down = name("mlp.down_proj.weight");
    if (weights.fusesInput(down, count)) {
      weights.apply(down, { x: gateUp, y: out, m: count, addend: x, input: { kind: "swiglu" } });
      return;
    }
    const active = scratch.floats(count * F, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows: count, width: F } });
    weights.apply(down, { x: active, y: out, m: count, addend: x });
  }

  /** Final norm, logits and a drawn token for each row of hidden states, [rows, C]. */
  draw(weights: Weights, at: Omit<StepInput, "cache"> & { readonly hidden: Buffer }): void {
    const { rows, scratch, hidden } = at;
    const { vocabSize, hiddenSize } = this.model.config;
    const stride = logitStride(vocabSize);
    const windows = logitWindows(this.model, rows.count);
    const logits = scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
    const rowBytes = hiddenSize * 4;
    for (const window of windows) {
      const x = hidden.slice(window.first * rowBytes, window.rows * rowBytes);
      const { normed, inverse } = this.model.norm(weights, { name: FINAL_NORM, x, rows: window.rows, scratch });
      weights.apply(this.model.head, { x: normed, y: logits, m: window.rows, stride });
      scratch.free(normed, inverse);
      this.sample(logits, { rows, window, shift: at.shift });
    }
  }

  private sample(logits: Buffer, at: { rows: DecodeRows; window: RowRun; shift: number }): void {
    const { seeds, positions, settings, next, tokens, logprobs, steps } = at.rows;
    const { vocabSize } = this.model.config;
    this.device.dispatch(chooseSample(this.device.info), {
      buffers: { logits, seeds, positions, settings, next, tokens, logprobs },
      params: {
        rows: at.window.rows,
        first_row: at.window.first,
        vocabulary: vocabSize,
        stride: logitStride(vocabSize),
        shift: at.shift,
        history_stride: steps,
      },
    });
  }
}
