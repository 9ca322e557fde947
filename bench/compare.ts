/**
 * Compares two saved runs: `npm run bench:compare -- A B`, each a path or the part of a file's name in `bench/history/`.
 * Exits 1 when a figure is slower beyond the noise of both runs, 2 when a run is not found or they share no figure.
 */
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { type Comparison, compareFigures, formatRate, HISTORY, readFigures } from "./history.ts";

/** The path of a run; undefined unless exactly one saved file matches. */
export function findRun(name: string, folder: string = HISTORY): string | undefined {
  if (existsSync(name)) return name;
  const files = existsSync(folder) ? readdirSync(folder).filter((file) => file.endsWith(".jsonl")) : [];
  const matching = files.filter((file) => file.includes(name));
  return matching.length === 1 ? join(folder, matching[0]!) : undefined;
}

export function tableOf(comparisons: readonly Comparison[]): string {
  const width = Math.max(...comparisons.map(({ name }) => name.length));
  const rows = comparisons.map(({ name, unit, before, after, change, verdict }) => {
    const percent = `${change >= 1 ? "+" : ""}${(100 * (change - 1)).toFixed(1)}%`;
    const rates = `${formatRate(before).padStart(10)} ${formatRate(after).padStart(10)} ${unit.padEnd(10)}`;
    return `${name.padEnd(width)} ${rates} ${percent.padStart(8)} ${verdict === "same" ? "" : verdict}`.trimEnd();
  });
  return rows.join("\n");
}

/** The table and the exit status. */
export function compareRuns([first, second]: readonly string[]): { text: string; status: number } {
  const [a, b] = [first, second].map((name) => (name === undefined ? undefined : findRun(name)));
  if (!a || !b) {
    const missing = (a ? second : first) ?? "no name";
    const text = `Cannot compare runs: not one saved run matches (${missing}). Name two files of ${HISTORY}.`;
    return { text, status: 2 };
  }
  const comparisons = compareFigures(readFigures(a), readFigures(b));
  if (comparisons.length === 0) {
    const text = "Cannot compare runs: they share no figure of one device. Save both on the same machine.";
    return { text, status: 2 };
  }
  const slower = comparisons.filter(({ verdict }) => verdict === "slower").length;
  const text = `${tableOf(comparisons)}\n\n${slower} of ${comparisons.length} slower beyond the noise of both runs`;
  return { text, status: slower > 0 ? 1 : 0 };
}

if (process.argv[1]?.endsWith("compare.ts")) {
  const { text, status } = compareRuns(process.argv.slice(2));
  console.log(text);
  process.exitCode = status;
}
