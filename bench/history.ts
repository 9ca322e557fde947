/** Figures of earlier runs, one JSON object a line in `bench/history/`, and how two runs compare. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const HISTORY = fileURLToPath(new URL("./history/", import.meta.url));

/** One figure, measured or counted. */
export interface Figure {
  /** ISO date and time, UTC. */
  readonly date: string;
  /** Abbreviated hash; ends in `+` where the working tree had changes. */
  readonly commit: string;
  readonly device: string;
  readonly driver: string;
  /** `model: sampling, batch 64`. */
  readonly name: string;
  /** At the median time. */
  readonly value: number;
  readonly unit: string;
  /** Of costs. Absent: higher is better. */
  readonly lowerIsBetter?: boolean;
  /** At the slowest and the quickest time of the run: its noise. */
  readonly low: number;
  readonly high: number;
  /** A ceiling or another implementation measured in the same run, and `value` as a share of it. */
  readonly peer?: string;
  readonly ratio?: number;
}

/** Writes a run's figures to a file of their own; returns its path. */
export function saveFigures(figures: readonly Figure[], folder: string = HISTORY): string {
  const [{ date, commit }] = figures as [Figure];
  const path = join(folder, `${date.slice(0, 16).replaceAll(":", "")}-${commit.replace("+", "-changed")}.jsonl`);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, figures.map((figure) => `${JSON.stringify(figure)}\n`).join(""));
  return path;
}

/** @throws {Error} that names the file and the line that is no figure */
export function readFigures(path: string): Figure[] {
  const lines = readFileSync(path, "utf8").split("\n");
  return lines.flatMap((line, i) => {
    if (line.trim() === "") return [];
    const figure = parseJson(line) as Partial<Figure> | undefined;
    const isFigure = [figure?.value, figure?.low, figure?.high].every((x) => typeof x === "number");
    if (!isFigure || typeof figure?.name !== "string")
      throw new Error(`Cannot read ${path}: line ${i + 1} is no figure. Save the run again.`);
    return [figure as Figure];
  });
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export interface Comparison {
  readonly name: string;
  readonly unit: string;
  readonly before: number;
  readonly after: number;
  /** after / before. */
  readonly change: number;
  /** For costs `slower` is more. `slower` and `faster` only where the two runs' ranges do not overlap: a difference beyond the recorded noise. */
  readonly verdict: "slower" | "faster" | "same";
}

/** Figures that both runs have, in the first one's order. A figure of another device or unit is another figure. */
export function compareFigures(before: readonly Figure[], after: readonly Figure[]): Comparison[] {
  const key = ({ name, device, unit }: Figure) => `${name}|${device}|${unit}`;
  const found = new Map(after.map((figure) => [key(figure), figure]));
  return before.flatMap((old) => {
    const now = found.get(key(old));
    if (!now) return [];
    const [falls, rises] = old.lowerIsBetter ? (["faster", "slower"] as const) : (["slower", "faster"] as const);
    const verdict = now.high < old.low ? falls : now.low > old.high ? rises : "same";
    const { name, unit, value } = old;
    return [
      { name, unit, before: value, after: now.value, change: value === now.value ? 1 : now.value / value, verdict },
    ];
  });
}

/** `17,261`, `3.45`. */
export function formatRate(rate: number): string {
  return rate >= 1000 ? Math.round(rate).toLocaleString("en") : rate.toPrecision(3);
}
