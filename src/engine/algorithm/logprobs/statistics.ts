/** Statistics of every token's distribution, f32 [rows], and one dispatch of them over a piece of the logits. */
import type { Buffer, Device } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import { logitsBackward, logitsForward, type PassParams, STATE_FLOATS } from "./kernels.ts";

/** Results of each row, f32 [rows] each. */
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
  readonly dentropy?: Buffer | undefined;
}

export interface LogitShape {
  readonly rows: number;
  /** V. */
  readonly vocabulary: number;
  /** Divides the logits, as when sampling. Default 1. */
  readonly temperature?: number | undefined;
}

export function allocStatistics(device: Device, rows: number): TokenStatistics {
  const alloc = (label: string) => device.alloc(rows * F32_BYTES, label);
  return {
    logprobs: alloc("logprobs"),
    entropies: alloc("entropies"),
    sumPiSquared: alloc("sums of squared probabilities"),
    logSumExps: alloc("log-sum-exps"),
  };
}

export function releaseStatistics(device: Device, s: TokenStatistics): void {
  device.release(s.logprobs, s.entropies, s.sumPiSquared, s.logSumExps);
}

/** Invocations of a workgroup: few where workgroups are cheap and lanes are vector lanes, many on a GPU. */
function workgroupOf(device: Device): { WORKGROUP: number } {
  return { WORKGROUP: device.info.family === "scalar" ? 8 : 128 };
}

/** Logits of some rows and columns, with the statistics of all rows. */
interface Piece {
  readonly logits: Buffer;
  readonly targets: Buffer;
  readonly statistics: TokenStatistics;
  readonly params: PassParams;
}

export function forwardPiece(device: Device, piece: Piece & { states: Buffer; first?: boolean; last?: boolean }): void {
  const { logits, targets, statistics, params, first = true, last = true } = piece;
  // A state that is never written still needs a binding of its own.
  const spare = first && last ? device.alloc(STATE_FLOATS * F32_BYTES, "softmax state") : undefined;
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

export function backwardPiece(device: Device, piece: Piece & { gradient: StatisticsGradient }): void {
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
