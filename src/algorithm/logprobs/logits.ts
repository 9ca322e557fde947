/**
 * From logits: log-prob of the target, entropy and sum of squared probabilities in one pass, and back. From hidden
 * states and the head matrix: the same, a piece of the vocabulary at a time, so that no [T, V] buffer exists.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { type Constants, defineKernel, folded, type Grid } from "../../compute/kernel.ts";
import { matmul } from "../../compute/matmul/matmul.ts";
import { UnsupportedError } from "../../errors.ts";

const PARAMS = {
  rows: "u32",
  first_row: "u32",
  columns: "u32",
  column_offset: "u32",
  stride: "u32",
  inverse_temperature: "f32",
} as const;

const STATE_FLOATS = 4;
/** Vec4s of a lane of the backward kernel. */
const DEPTH = 16;

/** Online softmax state of one row: highest, sum e, sum e (x - highest), sum e^2. */
type State = [number, number, number, number];

function absorb([highest, total, weighted, squares]: State, x: number): State {
  if (x <= highest) {
    const weight = Math.exp(x - highest);
    return [highest, total + weight, weighted + weight * (x - highest), squares + weight * weight];
  }
  const keep = Math.exp(highest - x);
  const moved = total === 0 ? 0 : keep * (weighted + total * (highest - x));
  return [x, total * keep + 1, moved, squares * keep * keep + 1];
}

export const logitsForward = defineKernel({
  name: "head/logits_forward",
  bindings: {
    logits: "read f32",
    targets: "read u32",
    states: "write f32",
    logprobs: "write f32",
    entropies: "write f32",
    log_sum_exps: "write f32",
    sums_pi_squared: "write f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8, FIRST: 1, LAST: 1 },
  tolerance: { relative: 2e-5, absolute: 5e-6 },
  grid: ({ rows }, { WORKGROUP }: Constants): Grid => folded(Math.ceil(rows / WORKGROUP!)),
  reference(buffers, params, constants) {
    const { logits, targets, states, logprobs, entropies, log_sum_exps, sums_pi_squared } = buffers;
    const { rows, first_row, columns, column_offset, stride, inverse_temperature } = params;
    for (let index = 0; index < rows; index++) {
      const row = first_row + index;
      const start = index * stride;
      let state: State = [Number.NEGATIVE_INFINITY, 0, 0, 0];
      if (!constants.FIRST) state = Array.from(states.subarray(row * 4, row * 4 + 4)) as State;
      for (let k = 0; k < columns; k++) state = absorb(state, logits[start + k]! * inverse_temperature);
      const target = targets[row]! - column_offset;
      const held = constants.FIRST ? 0 : logprobs[row];
      const chosen = target >= 0 && target < columns ? logits[start + target]! * inverse_temperature : held;
      logprobs[row] = chosen!;
      if (!constants.LAST) {
        states.set(state, row * STATE_FLOATS);
        continue;
      }
      const [highest, total, weighted, squares] = state;
      logprobs[row] = chosen! - highest - Math.log(total);
      entropies[row] = Math.log(total) - weighted / total;
      log_sum_exps[row] = highest + Math.log(total);
      sums_pi_squared[row] = squares / (total * total);
    }
  },
});

export const logitsBackward = defineKernel({
  name: "head/logits_backward",
  bindings: {
    logits: "write f32",
    targets: "read u32",
    log_sum_exps: "read f32",
    entropies: "read f32",
    dlogprobs: "read f32",
    dentropy: "read f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8, ENTROPY: 1 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: ({ rows, stride }, { WORKGROUP }: Constants): Grid =>
    folded(rows * Math.ceil(stride / 4 / (WORKGROUP! * DEPTH))),
  reference({ logits, targets, log_sum_exps, entropies, dlogprobs, dentropy }, params, constants) {
    const { rows, first_row, columns, column_offset, stride, inverse_temperature } = params;
    for (let index = 0; index < rows; index++) {
      const row = first_row + index;
      const a = dlogprobs[row]!;
      const b = constants.ENTROPY ? dentropy[row] : 0;
      for (let k = 0; k < stride; k++) {
        const at = index * stride + k;
        const logP = logits[at]! * inverse_temperature - log_sum_exps[row]!;
        const chosen = k + column_offset === targets[row] ? a : 0;
        const gradient =
          inverse_temperature * (chosen - Math.exp(logP) * (a + b! * (logP + entropies[row]!)));
        logits[at] = k < columns ? gradient : 0;
      }
    }
  },
});

/** Per-row results, f32 [rows] each. */
export interface TokenStatistics {
  /** log p(target). */
  readonly logprobs: Buffer;
  /** -sum p log p. */
  readonly entropies: Buffer;
  /** sum p^2, for the optimal token baseline. */
  readonly sumPiSquared: Buffer;
  readonly logSumExps: Buffer;
}

/** Gradients of a loss in the statistics, f32 [rows]. */
export interface StatisticsGradient {
  readonly dlogprobs: Buffer;
  readonly dentropy?: Buffer;
}

export interface RecordedLogprobs extends TokenStatistics {
  /** Turns the logits into their gradient, in place. */
  backward(gradient: StatisticsGradient): void;
  release(): void;
}

interface Shape {
  readonly rows: number;
  /** V. */
  readonly vocabulary: number;
  /** Logits were divided by it when sampling. Default 1. */
  readonly temperature?: number;
}

const BYTES = 4;
const ALIGNMENT = 64;

function allocStatistics(device: Device, rows: number): TokenStatistics {
  const alloc = (label: string) => device.alloc(rows * BYTES, label);
  return {
    logprobs: alloc("logprobs"),
    entropies: alloc("entropies"),
    sumPiSquared: alloc("sums of squared probabilities"),
    logSumExps: alloc("log-sum-exps"),
  };
}

function releaseStatistics(device: Device, s: TokenStatistics): void {
  device.release(s.logprobs, s.entropies, s.sumPiSquared, s.logSumExps);
}

/** Invocations of a workgroup: few where workgroups are cheap and lanes are vector lanes, many on a GPU. */
function workgroupOf(device: Device): { WORKGROUP: number } {
  return { WORKGROUP: device.info.family === "scalar" ? 8 : 128 };
}

/** Logits one binding holds, in rows whose slices may start anywhere a slice may. */
function rowWindows(rows: number, rowsPerWindow: number): { first: number; count: number }[] {
  const windows: { first: number; count: number }[] = [];
  for (let first = 0; first < rows; first += rowsPerWindow)
    windows.push({ first, count: Math.min(rowsPerWindow, rows - first) });
  return windows;
}

/**
 * Records the statistics of materialised logits, and on demand their gradient in place. Vocabularies of 150k and more
 * are worked through in windows of rows where one binding cannot hold them.
 * @param input.logits f32 [rows, stride]; stride (default V) must be a multiple of 4
 * @param input.targets u32 [rows]
 */
export function recordLogprobs(
  device: Device,
  input: Shape & { readonly logits: Buffer; readonly targets: Buffer; readonly stride?: number },
): RecordedLogprobs {
  const { rows, vocabulary, logits, targets } = input;
  const stride = input.stride ?? vocabulary;
  if (stride % 4 !== 0)
    throw new RangeError(
      `Cannot read logits as rows must be whole vec4s: a stride of ${stride}. Pad the rows.`,
    );
  const statistics = allocStatistics(device, rows);
  const step = ALIGNMENT / gcd(ALIGNMENT, stride);
  const held = Math.floor(device.info.limits.maxBindingBytes / BYTES / stride / step) * step;
  const windows = rowWindows(rows, Math.max(held, step));
  const each = (run: (window: { logits: Buffer; params: PassParams }) => void) => {
    for (const { first, count } of windows)
      run({
        logits: logits.slice(first * stride * BYTES, count * stride * BYTES),
        params: {
          rows: count,
          first_row: first,
          columns: vocabulary,
          column_offset: 0,
          stride,
          inverse_temperature: 1 / (input.temperature ?? 1),
        },
      });
  };
  each((window) => forwardPiece(device, { ...window, targets, statistics, states: statistics.logSumExps }));
  return {
    ...statistics,
    backward: (gradient) =>
      each((window) => backwardPiece(device, { ...window, targets, statistics, gradient })),
    release: () => releaseStatistics(device, statistics),
  };
}

type PassParams = { readonly [K in keyof typeof PARAMS]: number };

interface Piece {
  readonly logits: Buffer;
  readonly targets: Buffer;
  readonly statistics: TokenStatistics;
  readonly params: PassParams;
}

function forwardPiece(
  device: Device,
  piece: Piece & { states: Buffer; first?: boolean; last?: boolean },
): void {
  const { logits, targets, statistics, params, first = true, last = true } = piece;
  // A state that is never written still needs a binding of its own.
  const spare = first && last ? device.alloc(STATE_FLOATS * BYTES, "softmax state") : undefined;
  device.dispatch(logitsForward, {
    buffers: {
      logits,
      targets,
      states: spare ?? piece.states,
      logprobs: statistics.logprobs,
      entropies: statistics.entropies,
      log_sum_exps: statistics.logSumExps,
      sums_pi_squared: statistics.sumPiSquared,
    },
    params,
    constants: { ...workgroupOf(device), FIRST: Number(first), LAST: Number(last) },
  });
  if (spare) device.release(spare);
}

function backwardPiece(device: Device, piece: Piece & { gradient: StatisticsGradient }): void {
  const { logits, targets, statistics, params, gradient } = piece;
  device.dispatch(logitsBackward, {
    buffers: {
      logits,
      targets,
      log_sum_exps: statistics.logSumExps,
      entropies: statistics.entropies,
      dlogprobs: gradient.dlogprobs,
      dentropy: gradient.dentropy ?? gradient.dlogprobs,
    },
    params,
    constants: { ...workgroupOf(device), ENTROPY: Number(gradient.dentropy !== undefined) },
  });
}

export interface RecordedHeadLogprobs extends TokenStatistics {
  /** Gradients of the hidden states [rows, C] and of the head [V, C]; the caller releases them. */
  backward(gradient: StatisticsGradient): { readonly dhidden: Buffer; readonly dhead: Buffer };
  release(): void;
}

export interface HeadInput extends Shape {
  /** f32 [rows, C]. */
  readonly hidden: Buffer;
  /** f32 [V, C], as checkpoints store it. May exceed one binding. */
  readonly head: Buffer;
  readonly targets: Buffer;
  /** C, a multiple of 4. */
  readonly channels: number;
  /** Columns of logits that exist at one time, a multiple of 64. Default 4096. */
  readonly columnsPerPiece?: number;
}

/**
 * Records the statistics of hidden head^T without holding the logits: pieces of the vocabulary stream through one
 * [rows, columns] buffer. The backward pass computes each piece again: 8 R C V operations in all instead of 6.
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
    const largest = Math.max(
      input.rows * input.channels,
      input.rows * this.columns,
      this.columns * input.channels,
    );
    if (largest * BYTES > device.info.limits.maxBindingBytes)
      throw new UnsupportedError(
        `Cannot fuse the head over ${input.rows} rows at once: ${largest} floats exceed one binding. Split the rows.`,
        { part: "logits", capability: "rows of a fused head over several bindings" },
      );
  }

  /** Runs over the vocabulary with a piece's logits computed into one buffer. */
  private pieces(
    run: (piece: { logits: Buffer; params: PassParams; first: boolean; last: boolean }) => void,
  ): void {
    const { rows, channels, vocabulary, hidden, temperature = 1 } = this.input;
    const stride = this.columns;
    const logits = this.device.alloc(rows * stride * BYTES, "logits of a piece");
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
    const width = this.input.channels * BYTES;
    return head.slice(offset * width, columns * width);
  }

  forward(statistics: TokenStatistics): void {
    const states = this.device.alloc(this.input.rows * STATE_FLOATS * BYTES, "softmax state");
    this.pieces((piece) =>
      forwardPiece(this.device, { ...piece, targets: this.input.targets, statistics, states }),
    );
    this.device.release(states);
  }

  backward(statistics: TokenStatistics, gradient: StatisticsGradient): { dhidden: Buffer; dhead: Buffer } {
    const { rows, channels, vocabulary, hidden, head, targets } = this.input;
    const dhidden = this.device.alloc(rows * channels * BYTES, "dhidden");
    const dhead = this.device.alloc(vocabulary * channels * BYTES, "dhead");
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

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
