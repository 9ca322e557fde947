/** Machines whose limits the counted work is divided by. */
import type { Dispatch } from "./counted.ts";

export interface Machine {
  readonly name: string;
  /** f32 operations a second. */
  readonly flops: number;
  /** Bytes a second. */
  readonly bandwidth: number;
}

/** Of the makers' sheets; the last as `npm run bench -- matmul` and `grpu device` measured two cores with lavapipe. */
export const MACHINES: readonly Machine[] = [
  { name: "H200", flops: 67e12, bandwidth: 4.8e12 },
  { name: "RTX 4060 8 GB", flops: 15.1e12, bandwidth: 272e9 },
  { name: "M2", flops: 3.6e12, bandwidth: 100e9 },
  { name: "software GPU", flops: 92e9, bandwidth: 12e9 },
];

/** Seconds that one dispatch takes at least: its operations or its bytes, whichever is more. */
export function leastSeconds({ flop, bytes }: Pick<Dispatch, "flop" | "bytes">, machine: Machine): number {
  return Math.max(flop / machine.flops, bytes / machine.bandwidth);
}

/** What a phase costs. */
export interface Cost {
  readonly dispatches: number;
  readonly bytes: number;
  readonly flop: number;
  readonly readBacks: number;
  readonly smallest: Pick<Dispatch, "kernel" | "workgroups">;
  /** Share of the least time on the first machine that lies in dispatches of less than 64 workgroups. */
  readonly narrowShare: number;
  /** By machine. */
  readonly seconds: Readonly<Record<string, number>>;
}

const NARROW_WORKGROUPS = 64;

/** @param per divides everything: the steps that were counted together */
export function costOf(
  dispatches: readonly Dispatch[],
  { readBacks, per = 1 }: { readBacks: number; per?: number },
): Cost {
  const sum = (of: (it: Dispatch) => number, among = dispatches) =>
    among.reduce((total, it) => total + of(it), 0) / per;
  const [first] = MACHINES;
  const narrow = dispatches.filter(({ workgroups }) => workgroups < NARROW_WORKGROUPS);
  const onFirst = (it: Dispatch) => leastSeconds(it, first!);
  return {
    dispatches: dispatches.length / per,
    bytes: sum(({ bytes }) => bytes),
    flop: sum(({ flop }) => flop),
    readBacks: readBacks / per,
    smallest: dispatches.reduce((least, it) => (it.workgroups < least.workgroups ? it : least)),
    narrowShare: sum(onFirst, narrow) / sum(onFirst),
    seconds: Object.fromEntries(MACHINES.map((machine) => [machine.name, sum((it) => leastSeconds(it, machine))])),
  };
}

/** Dispatches and least time on the first machine by kernel, the most dispatches first. */
export function byKernel(dispatches: readonly Dispatch[]): { kernel: string; count: number; seconds: number }[] {
  const found = new Map<string, { kernel: string; count: number; seconds: number }>();
  for (const it of dispatches) {
    const { kernel, count, seconds } = found.get(it.kernel) ?? { kernel: it.kernel, count: 0, seconds: 0 };
    found.set(kernel, { kernel, count: count + 1, seconds: seconds + leastSeconds(it, MACHINES[0]!) });
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}
