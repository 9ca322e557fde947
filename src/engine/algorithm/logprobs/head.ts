/** The same statistics from hidden states and the head matrix, a piece of the vocabulary at a time: no [T, V] buffer exists. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { matmul } from "../../compute/matmul/matmul.ts";
import { F32_BYTES } from "../f32.ts";
import { type PassParams, STATE_FLOATS } from "./kernels.ts";
import {
  allocStatistics,
  backwardPiece,
  forwardPiece,
  type LogitShape,
  releaseStatistics,
  type StatisticsGradient,
  type TokenStatistics,
} from "./statistics.ts";

/** Log-probs from hidden states, in GPU buffers, and the way back. */
export interface RecordedHeadLogprobs extends TokenStatistics {
  /** Gradients of the hidden states [rows, C] and of the head [V, C]; the caller releases them. */
  backward(gradient: StatisticsGradient): { readonly dhidden: Buffer; readonly dhead: Buffer };
  release(): void;
}

/** Hidden states, head matrix and targets for log-probs without materialised logits. */
export interface HeadInput extends LogitShape {
  /** f32 [rows, C]. */
  readonly hidden: Buffer;
  /** f32 [V, C], as checkpoints store it. May exceed one binding. */
  readonly head: Buffer;
  readonly targets: Buffer;
  /** C, a multiple of 4. */
  readonly channels: number;
  /** Columns of logits that exist at one time, a multiple of 64. Default 4096. */
  readonly columnsPerPiece?: number | undefined;
}

/**
 * Records the statistics of hidden head^T without holding the logits: pieces of the vocabulary stream through one
 * [rows, columns] buffer. The backward pass computes each piece again: 8 rows C V operations in all instead of 6.
 * @throws {UnsupportedError} for rows that one binding cannot hold
 */
export function recordHeadLogprobs(device: Device, input: HeadInput): RecordedHeadLogprobs {
  const head = new HeadPieces(device, input);
  const statistics = allocStatistics(device, input.rows);
  head.forward(statistics);
  return {
    ...statistics,
    backward: (gradient) => head.backward(statistics, gradient),
    release: () => releaseStatistics(device, statistics),
  };
}

class HeadPieces {
  private readonly device: Device;
  private readonly input: HeadInput;
  private readonly columns: number;

  constructor(device: Device, input: HeadInput) {
    this.device = device;
    this.input = input;
    this.columns = input.columnsPerPiece ?? 4096;
    const largest = Math.max(input.rows * input.channels, input.rows * this.columns, this.columns * input.channels);
    if (largest * F32_BYTES > device.info.limits.maxBindingBytes)
      throw new UnsupportedError(
        `Cannot fuse the head over ${input.rows} rows at once: ${largest} floats exceed one binding. Split the rows.`,
        { part: "logits", capability: "rows of a fused head over several bindings" },
      );
  }

  /** Runs over the vocabulary with a piece's logits computed into one buffer. */
  private pieces(run: (piece: { logits: Buffer; params: PassParams; first: boolean; last: boolean }) => void): void {
    const { rows, channels, vocabulary, hidden, temperature = 1 } = this.input;
    const stride = this.columns;
    const logits = this.device.alloc(rows * stride * F32_BYTES, "logits of a piece");
    for (let offset = 0; offset < vocabulary; offset += stride) {
      const columns = Math.min(stride, vocabulary - offset);
      matmul(this.device, {
        m: rows,
        n: columns,
        k: channels,
        a: { buffer: hidden },
        b: { buffer: this.headPiece(this.input.head, offset, columns) },
        c: { buffer: logits, stride },
        transposeB: true,
      });
      run({
        logits,
        params: {
          rows,
          first_row: 0,
          columns,
          column_offset: offset,
          stride,
          inverse_temperature: 1 / temperature,
        },
        first: offset === 0,
        last: offset + columns === vocabulary,
      });
    }
    this.device.release(logits);
  }

  private headPiece(head: Buffer, offset: number, columns: number): Buffer {
    const width = this.input.channels * F32_BYTES;
    return head.slice(offset * width, columns * width);
  }

  forward(statistics: TokenStatistics): void {
    const states = this.device.alloc(this.input.rows * STATE_FLOATS * F32_BYTES, "softmax state");
    this.pieces((piece) => forwardPiece(this.device, { ...piece, targets: this.input.targets, statistics, states }));
    this.device.release(states);
  }

  backward(statistics: TokenStatistics, gradient: StatisticsGradient): { dhidden: Buffer; dhead: Buffer } {
    const { rows, channels, vocabulary, hidden, head, targets } = this.input;
    const dhidden = this.device.alloc(rows * channels * F32_BYTES, "dhidden");
    const dhead = this.device.alloc(vocabulary * channels * F32_BYTES, "dhead");
    this.pieces(({ logits, params, first }) => {
      backwardPiece(this.device, { logits, params, targets, statistics, gradient });
      const { columns: k, column_offset: offset, stride } = params;
      const dlogits = { buffer: logits, stride };
      matmul(this.device, {
        m: rows,
        n: channels,
        k,
        a: dlogits,
        b: { buffer: this.headPiece(head, offset, k) },
        c: { buffer: dhidden },
        accumulate: !first,
      });
      matmul(this.device, {
        m: k,
        n: channels,
        k: rows,
        a: dlogits,
        b: { buffer: hidden },
        c: { buffer: this.headPiece(dhead, offset, k) },
        transposeA: true,
      });
    });
    return { dhidden, dhead };
  }
}
