/**
 * One step of decoding: a token for each of many sequences, from the cache of its earlier tokens. The kernels of a step:
 *
 *     embedding; each layer: rms_norm, matmul (qkv, with its bias), [head norms], rope_append, attention_decode,
 *     matmul (output), rms_norm, matmul (gate, up), swiglu, matmul (down); rms_norm, matmul (logits), sample
 *
 * On GPUs, and for wide heads, rope_append and attention_decode are one, attention_step. Sample is several on GPUs:
 * kernels/sample_tiled.ts. Few rows of a GPU (at most 64, as a rule) are normalised in the products by qkv and by gate and up, and the
 * latter stores swiglu; lanes of a software adapter take swiglu in the product by down. Beside an adapter of some of a matrix's tensors,
 * biases, norms and swiglu are dispatches of their own. Long contexts of few rows take two attention kernels: blocks/attention_step.ts.
 *
 * On software adapters narrow models take fewer, larger ones: decode_chain.ts.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { blockKind, type Layer } from "../blocks/kinds.ts";
import { recordLogprob } from "../kernels/logprob.ts";
import { maskLogits } from "../kernels/mask_logits.ts";
import { recordSample } from "../kernels/sample_tiled.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import type { RowRun } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { FINAL_NORM, type Weights } from "../weights.ts";
import { DecodeChain } from "./decode_chain.ts";
import type { HostRows } from "./host_rows.ts";
import { layerCache } from "./key_value_cache.ts";
import type { DecodeRows, StepInput } from "./step_input.ts";

/** A window of the rows, whose logits are there. */
interface DrawInput {
  readonly rows: DecodeRows;
  readonly window: RowRun;
  readonly scratch: Scratch;
}

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
      Scratch.during(this.device, (scratch) => this.layer(weights, { ...at, scratch, layer, x, out }));
      outer.free(x);
      x = out;
    }
    return x;
  }

  /** One layer's blocks: `out` takes what the last one leaves. */
  private layer(weights: Weights, at: StepInput & { layer: Layer; x: Buffer; out: Buffer }): void {
    const { layer, rows, shift, scratch } = at;
    const cache = layerCache(at.cache, layer.index);
    let { x } = at;
    for (const [i, block] of layer.blocks.entries()) {
      const isLast = i === layer.blocks.length - 1;
      const out = isLast ? at.out : scratch.floats(rows.count * this.model.config.hiddenSize, "residual");
      blockKind(block).step(this.model.context, weights, { block, x, out, rows, cache, shift, scratch });
      x = out;
    }
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
