/** Output of the commands of `grpu compute`: JSON by row, or tables for people. */

import type { Rollouts } from "../../engine/packing/rollouts/rollouts.ts";
import type { Io } from "../command.ts";

/** Returns per-token numbers as one list per row. */
export async function listsByRow<K extends string>(
  rollouts: Rollouts,
  values: Record<K, ArrayLike<number>>,
): Promise<Record<K, number[][]>> {
  const { unpack } = await import("../../engine/packing/offsets.ts");
  const entries = Object.entries<ArrayLike<number>>(values).map(([name, flat]) => [
    name,
    unpack(flat, rollouts.offsets),
  ]);
  return Object.fromEntries(entries) as Record<K, number[][]>;
}

export function printJson(io: Io, value: unknown): void {
  io.out(`${JSON.stringify(value)}\n`);
}

const NUMBER_WIDTH = 10;

export function metricLines(metrics: Readonly<Record<string, number>>): string {
  const width = Math.max(...Object.keys(metrics).map((name) => name.length));
  return Object.entries(metrics)
    .map(([name, value]) => `${name.padEnd(width)}  ${format(value)}\n`)
    .join("");
}

function format(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(6);
}

const MAX_GROUPS_SHOWN = 20;

export function groupTable(
  names: readonly string[],
  groups: readonly import("../../engine/algorithm/advantage/metrics.ts").GroupSummary[],
): string {
  const shown = groups.slice(0, MAX_GROUPS_SHOWN);
  const nameWidth = Math.max(5, ...names.slice(0, MAX_GROUPS_SHOWN).map((name) => name.length));
  const cell = (text: string | number) => (typeof text === "number" ? format(text) : text).padStart(NUMBER_WIDTH);
  const header = ["rows", "reward", "std", "min adv", "max adv"].map(cell).join("  ");
  const lines = shown.map((group, i) => {
    const numbers = [group.size, group.rewardMean, group.rewardStd, group.advantageMin, group.advantageMax];
    return `${(names[i] ?? `row ${i}`).padEnd(nameWidth)}${numbers.map((x) => `  ${cell(x)}`).join("")}  ${group.difficulty ?? "alone"}\n`;
  });
  const more = groups.length > shown.length ? `... and ${groups.length - shown.length} more groups\n` : "";
  return `${"group".padEnd(nameWidth)}  ${header}\n${lines.join("")}${more}\n`;
}
