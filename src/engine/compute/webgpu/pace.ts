/**
 * How long recorded work will take, so that no submit holds the GPU for long: systems end work that does (Windows after
 * two seconds), and nothing else is drawn meanwhile. Estimates start from a slow device of the kind and are corrected by
 * the time that earlier submits took, per kernel. They decide only where one submit ends and the next begins: the order of
 * the work, and so its results, stay the same.
 */
import type { DeviceInfo } from "../device.ts";

/** A submit ends before its estimate exceeds this, unless one dispatch alone does: that is for its kernel's caller to cut. */
export const LONGEST_SUBMIT_SECONDS = 0.2;

/** Rates of a slow device of each kind. */
const RATES = {
  tiled: { flops: 1e12, bytes: 1e11, dispatchSeconds: 1e-5 },
  scalar: { flops: 1e10, bytes: 5e9, dispatchSeconds: 2e-5 },
} as const;

/** How far one measurement moves the estimates towards itself. */
const STEP = 0.5;
/** One measurement changes a kernel's factor by at most this much: a pause of the whole machine says nothing about it. */
const LARGEST_CHANGE = 8;
const LEAST_FACTOR = 1e-3;
/** Shorter work says little: its time is that of the call. */
const LEAST_MEASURED_SECONDS = 1e-3;

/** Seconds by kernel, before any correction. */
export type SecondsByKernel = Map<string, number>;

export class Pace {
  private readonly rates: (typeof RATES)[DeviceInfo["family"]];
  private readonly factors = new Map<string, number>();

  constructor(family: DeviceInfo["family"]) {
    this.rates = RATES[family];
  }

  /** Seconds of an operation by its floating-point operations and the bytes it touches, before any correction. */
  nominal({ flops = 0, bytes }: { readonly flops?: number | undefined; readonly bytes: number }): number {
    return Math.max(flops / this.rates.flops, bytes / this.rates.bytes) + this.rates.dispatchSeconds;
  }

  /** Seconds of an operation by what was measured so far. */
  seconds(kernel: string, nominal: number): number {
    return nominal * (this.factors.get(kernel) ?? 1);
  }

  /**
   * Corrects the estimates by the time that `work` took: the normalised least-mean-squares rule, by which those kernels
   * change most that had most to do.
   */
  learn(work: SecondsByKernel, seconds: number): void {
    let estimate = 0;
    let norm = LEAST_MEASURED_SECONDS ** 2;
    for (const [kernel, nominal] of work) {
      estimate += this.seconds(kernel, nominal);
      norm += nominal ** 2;
    }
    const step = (STEP * (seconds - estimate)) / norm;
    for (const [kernel, nominal] of work) {
      const factor = this.factors.get(kernel) ?? 1;
      const corrected = Math.min(factor + step * nominal, factor * LARGEST_CHANGE);
      this.factors.set(kernel, Math.max(corrected, factor / LARGEST_CHANGE, LEAST_FACTOR));
    }
  }
}
