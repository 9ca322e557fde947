/** The time of a profile by kernel, as a table for people. */
import { kernelRuns, type Profile } from "./profile.ts";

/** Time of one kernel in a profile. */
export interface KernelTime {
  readonly name: string;
  readonly calls: number;
  /** Time of all calls. */
  readonly ms: number;
  /** Share of the time of all kernels, 0 to 1. */
  readonly share: number;
}

/** Every kernel, the one that took longest first. */
export function timeByKernel({ batches }: Pick<Profile, "batches">): KernelTime[] {
  const sums = new Map<string, { calls: number; ms: number }>();
  let total = 0;
  for (const { name, start, end } of kernelRuns(batches)) {
    const sum = sums.get(name) ?? { calls: 0, ms: 0 };
    sum.calls++;
    sum.ms += end - start;
    total += end - start;
    sums.set(name, sum);
  }
  return [...sums]
    .map(([name, { calls, ms }]) => ({ name, calls, ms, share: total > 0 ? ms / total : 0 }))
    .sort((a, b) => b.ms - a.ms);
}

/** Rows for the kernels that took longest, and one for the others. */
export function kernelTable(times: readonly KernelTime[], most: number = 20): string {
  const shown = times.slice(0, most);
  const others = times.slice(most);
  const sum = (of: (time: KernelTime) => number) => others.reduce((total, time) => total + of(time), 0);
  const name = `${others.length} other${others.length === 1 ? "" : "s"}`;
  const rest = { name, calls: sum(({ calls }) => calls), ms: sum(({ ms }) => ms), share: sum(({ share }) => share) };
  const rows = others.length > 0 ? [...shown, rest] : shown;
  const cells = [
    ["kernel", "time", "calls", "each", "share"],
    ...rows.map(({ name, calls, ms, share }) => [
      name,
      `${ms.toFixed(1)} ms`,
      String(calls),
      `${((ms / calls) * 1000).toFixed(0)} us`,
      `${(share * 100).toFixed(1)}%`,
    ]),
  ];
  const widths = cells[0]!.map((_, column) => Math.max(...cells.map((row) => row[column]!.length)));
  const line = (row: readonly string[]) =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))).join("  ");
  return `${cells.map(line).join("\n")}\n`;
}
