/**
 * One step of decoding: a token for each of many sequences, from the cache of its earlier tokens. The kernels of a step:
 *
 *     embedding; each layer: rms_norm, matmul (qkv, with its bias), [head norms], rope_append, attention_decode,
 *     matmul (output), rms_norm, matmul (gate, up), swiglu, matmul (down); rms_norm, matmul (logits), sample
 *
 * On GPUs, and for wide heads, rope_append and attention_decode are one, attention_step. Sample is several on GPUs:
 * kernels/sample_tiled.ts. Few rows of a GPU (at most 64, as a rule) are normalised in the products by qkv and by gate and up, and the
 * latter stores swiglu; lanes of a software adapter take swiglu in the product by down. Beside an adapter of some of a matrix's tensors,
 * biases, norms and swiglu are dispatches of their own. Long contexts of few rows take two attention kernels: attend_step.ts. Families with norms of outputs or scaled embeddings take what transformer.ts
 * takes for them.
 *
 * On software adapters narrow models take fewer, larger ones: decode_chain.ts.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { recordLogprob } from "../kernels/logprob.ts";
import { maskLogits } from "../kernels/mask_logits.ts";
import { ropeAppend } from "../kernels/rope_append.ts";
import { recordSample } from "../kernels/sample_tiled.ts";
import type { Layer } from "../layers.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import { attentionScale } from "../qkv_layout.ts";
import { bufferRows, type RowRun } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import { FINAL_NORM, type Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { attendStep } from "./attend_step.ts";
import { DecodeChain } from "./decode_chain.ts";
import type { HostRows } from "./host_rows.ts";
import { cacheBuffers, type DecodeRows, type StepInput } from "./step_input.ts";

/** A window of the rows, whose logits are there. */
interface DrawInput {
  readonly rows: DecodeRows;
  readonly window: RowRun;
  readonly scratch: Scratch;
}

type LayerInput = StepInput & { readonly layer: Layer; readonly x: Buffer };

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
    Scratch.during(this.device, (scratch) => {
      const input = { ...at, scratch };
      const isChained = !at.rows.sharesSequences && this.chain.fits(weights, at.rows.count);
      if (isChained) this.drawChained(weights, input);
      else this.draw(weights, { ...input, hidden: this.layers(weights, input) });
    });
  }

  private drawChained(weights: Weights, at: StepInput): void {
    const { rows, scratch } = at;
    if (rows.host || !this.chain.takesHead(weights, rows.count)) {
      this.draw(weights, { ...at, hidden: this.chain.run(weights, at) });
      return;
    }
    const logits = scratch.floats(rows.count * logitStride(this.model.config.vocabSize), "logits");
    this.chain.run(weights, at, logits);
    this.sample(logits, { ...at, window: { first: 0, rows: rows.count } });
  }

  /** Hidden states of each row's last token, [rows, C]. */
  private layers(weights: Weights, at: StepInput): Buffer {
    const { rows, scratch: outer } = at;
    const residual = () => outer.floats(rows.count * this.model.config.hiddenSize, "residual");
    let x = residual();
    this.model.embed(weights, { tokens: rows.next, out: x, count: rows.count });
    for (const layer of this.model.layers) {
      const out = residual();
      Scratch.during(this.device, (scratch) => {
        const middle = this.attend(weights, { ...at, scratch, layer, x });
        this.mlp(weights, { ...at, scratch, layer, x: middle, out });
      });
      outer.free(x);
      x = out;
    }
    return x;
  }

  /** x + attention(norm(x)) W_o^T. */
  private attend(weights: Weights, at: LayerInput): Buffer {
    const { layer, x, scratch } = at;
    const { count: rows } = at.rows;
    const { hiddenSize: C, heads, headDim } = this.model.config;
    const qkv = this.project(weights, at);
    const attended = scratch.floats(rows * heads * headDim, "attention output");
    const { step } = this.model.attention;
    if (step && !at.rows.sharesSequences) attendStep(this.model, step, { ...at, qkv, out: attended });
    else {
      this.rotateAndAppend(at, qkv);
      this.attendCache(at, { qkv, out: attended });
    }
    const y = scratch.floats(rows * C, "residual");
    this.model.addOutput(weights, { output: layer.attentionOutput, x, input: attended, y, rows, scratch });
    return y;
  }

  /** q, k and v of each row, not rotated. */
  private project(weights: Weights, { rows: { count: rows }, x, scratch, layer }: LayerInput): Buffer {
    const qkv = this.model.project(weights, { layer, x, rows, scratch });
    if (!this.model.config.qkNorm) return qkv;
    return this.model.norms.heads(weights, { layer, qkvRaw: qkv, rows, scratch }).qkv;
  }

  /** Rotates q and k by position, and writes k and v into the cache. */
  private rotateAndAppend({ cache, layer, rows, shift }: LayerInput, qkv: Buffer): void {
    const { heads, kvHeads, headDim } = this.model.config;
    const angles = this.model.ropes.table(layer.index);
    this.device.dispatch(ropeAppend[cache.dtype], {
      buffers: { ...cacheBuffers({ cache, layer: layer.index, rows }), angles, qkv },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        width: headDim,
        row_pages: rows.rowPages,
        shift,
        rotates: layer.rotates ? 1 : 0,
      },
    });
  }

  /** Attention of each row's query to its keys in the cache. */
  private attendCache({ cache, layer, rows, shift }: LayerInput, io: { qkv: Buffer; out: Buffer }): void {
    const { config, qkvWidth, attention } = this.model;
    this.device.dispatch(attention.decode[cache.dtype], {
      buffers: { ...cacheBuffers({ cache, layer: layer.index, rows }), q: io.qkv, out: io.out },
      params: {
        rows: rows.count,
        heads: config.heads,
        key_heads: config.kvHeads,
        q_stride: qkvWidth,
        q_offset: 0,
        row_pages: rows.rowPages,
        shift,
        window: layer.window,
        scale: attentionScale(config),
      },
      constants: attention.decodeConstants,
    });
  }

  /** out = x + mlp(norm(x)), a run of rows after another, because gate and up of all may exceed one binding. */
  private mlp(weights: Weights, at: LayerInput & { out: Buffer }): void {
    const { hiddenSize: C } = this.model.config;
    for (const run of this.model.mlpRuns(at.rows.count)) {
      const [x, out] = [bufferRows(at.x, run, C), bufferRows(at.out, run, C)];
      Scratch.during(this.device, (scratch) =>
        this.mlpRun(weights.ofRows?.(run) ?? weights, { layer: at.layer, x, out, rows: run.rows, scratch }),
      );
    }
  }

  private mlpRun(weights: Weights, at: { layer: Layer; x: Buffer; out: Buffer; rows: number; scratch: Scratch }): void {
    const { layer, x, out: y, rows, scratch } = at;
    const { model } = this;
    const { mlpOutput: output } = layer;
    const isPlain = (model.config.activation ?? "silu") === "silu" && output.norm === undefined && !output.bias;
    if (isPlain && weights.fuses(output.matrix, { part: "swiglu_input", m: rows })) {
      const { normed } = model.norms.rows(weights, { name: layer.middleNorm, x, rows, scratch });
      const gateUp = model.gateUp(weights, { layer, x: normed, rows, scratch });
      weights.apply(output.matrix, { x: gateUp, y, m: rows, addend: x, input: { kind: "swiglu" } });
      return;
    }
    const active = model.activated(weights, { layer, x, rows, scratch });
    model.addOutput(weights, { output, x, input: active, y, rows, scratch });
  }

  /** Final norm, logits and a drawn token for each row of hidden states, [rows, C]. */
  draw(weights: Weights, at: Omit<StepInput, "cache"> & { readonly hidden: Buffer }): void {
    const { rows, scratch, hidden } = at;
    const { vocabSize, hiddenSize } = this.model.config;
    const stride = logitStride(vocabSize);
    const windows = logitWindows(this.model, rows.count);
    const logits = rows.host?.logits ?? scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
    const rowBytes = hiddenSize * 4;
    for (const window of windows) {
      const x = hidden.slice(window.first * rowBytes, window.rows * rowBytes);
      const { normed, inverse } = this.model.norms.rows(weights, { name: FINAL_NORM, x, rows: window.rows, scratch });
      const windowWeights = weights.ofRows?.(window) ?? weights;
      windowWeights.apply(this.model.head, { x: normed, y: logits, m: window.rows, stride });
      scratch.free(normed, inverse);
      if (rows.host) this.sampleWithHost(rows.host, { rows, window, scratch });
      else this.sample(logits, { rows, window, scratch, shift: at.shift });
    }
  }

  /** Draws under the masks. The log-probabilities are those of all tokens, by the same steps as without a mask. */
  private sampleWithHost(host: HostRows, at: DrawInput): void {
    const { rows, scratch } = at;
    const { logits, mask, entropies, logSumExps, inverseTemperature } = host;
    const { vocabSize } = this.model.config;
    const stride = logitStride(vocabSize);
    if (!mask) {
      this.sample(logits, { ...at, shift: 0 });
      return;
    }
    const { bits: masks, words, masked } = mask;
    const buffers = { logits, masks, masked };
    this.device.dispatch(maskLogits, { buffers, params: { rows: rows.count, stride, words } });
    this.sample(masked, { ...at, shift: 0 });
    recordLogprob(this.device, {
      scratch,
      buffers: { logits, targets: rows.next, logprobs: rows.logprobs, entropies, logSumExps },
      params: {
        rows: rows.count,
        first_row: 0,
        vocabulary: vocabSize,
        stride,
        inverse_temperature: inverseTemperature,
      },
    });
  }

  private sample(logits: Buffer, at: DrawInput & { shift: number }): void {
    const { seeds, positions, settings, filters, next, tokens, logprobs, stride } = at.rows;
    const { vocabSize } = this.model.config;
    recordSample(this.device, {
      filters,
      scratch: at.scratch,
      buffers: { logits, seeds, positions, settings, next, tokens, logprobs },
      params: {
        rows: at.window.rows,
        first_row: at.window.first,
        vocabulary: vocabSize,
        stride: logitStride(vocabSize),
        shift: at.shift,
        history_stride: stride,
      },
    });
  }
}
