/** The scores of an evaluation as text: metrics of one model, or a table of several. */
import type {
  EvaluationReport,
  IntervalEstimate,
  ModelScores,
  PairedDifference,
} from "../../train/evaluation/contract.ts";
import { shortNames } from "../../train/run/evaluation/named_models.ts";

/** A metric a line, under the names that training logs, with its interval where it has one. */
export function scoreLines(metrics: Readonly<Record<string, number>>, { sources }: ModelScores): string {
  const lines = new Map(Object.entries(metrics).map(([name, value]) => [name, value.toFixed(4)]));
  for (const [source, estimates] of Object.entries(sources))
    for (const [name, estimate] of Object.entries(estimates))
      lines.set(`val/${source}/${name}`, withInterval(estimate));
  return Array.from(lines, ([name, text]) => `${name.padEnd(40)} ${text}\n`).join("");
}

/** Models in columns, and the difference of each to the first. */
export function comparisonTable({ models, differences }: EvaluationReport): string {
  const names = shortNames(models.map(({ model }) => ({ name: model })));
  const sources = new Set(models.flatMap((each) => Object.keys(each.sources)));
  return [...sources].map((source) => sourceTable(source, { models, differences, names })).join("\n");
}

interface Compared {
  readonly models: readonly ModelScores[];
  readonly differences: readonly PairedDifference[];
  readonly names: readonly string[];
}

function sourceTable(source: string, { models, differences, names }: Compared): string {
  const measures = new Set(models.flatMap((each) => Object.keys(each.sources[source] ?? {})));
  const tasks = models[0]!.sources[source]?.reward?.tasks ?? 0;
  const heads = [`${source} (${tasks} tasks)`, ...names, ...names.slice(1).map((name) => `${name} - ${names[0]}`)];
  const rows = [...measures].map((measure) => [
    measure,
    ...models.map((each) => cell(each.sources[source]?.[measure], withInterval)),
    ...differences.map((each) => cell(each.sources[source]?.[measure], signedWithInterval)),
  ]);
  return columns([heads, ...rows]);
}

const cell = (estimate: IntervalEstimate | undefined, show: (estimate: IntervalEstimate) => string) =>
  estimate ? show(estimate) : "-";

function columns(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]!.map((_, i) => Math.max(...rows.map((row) => row[i]!.length)));
  const line = (row: readonly string[]) => row.map((text, i) => text.padEnd(widths[i]!)).join("  ");
  return rows.map((row) => `${line(row).trimEnd()}\n`).join("");
}

/** `0.4120 [0.3861, 0.4384]` */
export function withInterval({ mean, interval }: IntervalEstimate): string {
  return interval ? `${mean.toFixed(4)} [${interval.map((end) => end.toFixed(4)).join(", ")}]` : mean.toFixed(4);
}

/** `+0.0320 [+0.0104, +0.0536] *`; the star: the interval does not contain 0. */
export function signedWithInterval({ mean, interval }: IntervalEstimate): string {
  const signed = (value: number) => `${value < 0 ? "-" : "+"}${Math.abs(value).toFixed(4)}`;
  if (!interval) return signed(mean);
  const [low, high] = interval;
  return `${signed(mean)} [${signed(low)}, ${signed(high)}]${low > 0 || high < 0 ? " *" : ""}`;
}
