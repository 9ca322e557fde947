/**
 * Metric names of verl and Trinity-RFT. verl logs one row per iteration; Trinity has two runs, `_explorer` and
 * `_trainer`, each with its own steps, `sync_interval` of them per iteration of verl.
 */

export interface MetricRow {
  readonly step: number;
  readonly values: Readonly<Record<string, unknown>>;
}

export interface SplitRows {
  readonly explorer: readonly MetricRow[];
  readonly trainer: readonly MetricRow[];
}

export interface MetricOptions {
  /** Trinity steps per iteration of verl. */
  readonly syncInterval: number;
  /** Called once for each name that the other system lacks; the name is kept. */
  readonly onUnmapped?: (name: string) => void;
}

type Side = "explorer" | "trainer";

/** Names that both systems use alike; they come from the trainer. */
const SAME = /^(actor|critic|perf|global_seqlen|response_length|prompt_length|timing_per_token_ms)\//;
/** Names that only one system has, kept so that nothing is lost. */
const ONLY_EXPLORER = /^(rollout|eval|bench|experience_pipeline)\//;
const TIMES: readonly (readonly [verl: string, trinity: string, side: Side])[] = [
  ["timing_s/step", "time/train_step", "trainer"],
  ["timing_s/testing", "time/eval", "explorer"],
];

/** verl rows as the two runs of Trinity. */
export function metricsToTrinity(rows: readonly MetricRow[], { syncInterval, onUnmapped }: MetricOptions): SplitRows {
  const seen = new Set<string>();
  const explorer: MetricRow[] = [];
  const trainer: MetricRow[] = [];
  for (const row of rows) {
    const values: Record<Side, Record<string, unknown>> = { explorer: {}, trainer: {} };
    for (const [name, value] of Object.entries(row.values)) {
      const mapped = toTrinityName(name);
      values[mapped.side][mapped.name] = value;
      if (!mapped.isKnown) reportOnce(seen, name, onUnmapped);
    }
    const step = row.step * syncInterval;
    if (Object.keys(values.explorer).length > 0) explorer.push({ step, values: values.explorer });
    if (Object.keys(values.trainer).length > 0) trainer.push({ step, values: values.trainer });
  }
  return { explorer, trainer };
}

function toTrinityName(name: string): { name: string; side: Side; isKnown: boolean } {
  const validation = /^val-(?:core|aux)\/(.*)$/.exec(name);
  if (validation) return { name: `eval/${validation[1]}`, side: "explorer", isKnown: true };
  const time = TIMES.find(([verl]) => verl === name);
  if (time) return { name: time[1], side: time[2], isKnown: true };
  if (name.startsWith("timing_s/")) return { name: `time/${name.slice(9)}`, side: "trainer", isKnown: true };
  if (ONLY_EXPLORER.test(name)) return { name, side: "explorer", isKnown: false };
  return { name, side: "trainer", isKnown: SAME.test(name) };
}

/**
 * The two runs of Trinity as verl rows. Steps within one iteration are averaged, except that the last value of a
 * name that is no number counts.
 */
export function metricsToVerl(
  { explorer, trainer }: SplitRows,
  { syncInterval, onUnmapped }: MetricOptions,
): MetricRow[] {
  const seen = new Set<string>();
  const sums = new Map<number, Map<string, { sum: number; count: number; last: unknown }>>();
  for (const row of [...explorer, ...trainer]) {
    const step = Math.ceil(row.step / syncInterval);
    const values = sums.get(step) ?? new Map();
    sums.set(step, values);
    for (const [trinity, value] of Object.entries(row.values)) {
      const { name, isKnown } = toVerlName(trinity);
      if (!isKnown) reportOnce(seen, trinity, onUnmapped);
      const entry = values.get(name) ?? { sum: 0, count: 0, last: undefined };
      const isNumber = typeof value === "number";
      values.set(name, {
        sum: entry.sum + (isNumber ? value : 0),
        count: entry.count + (isNumber ? 1 : 0),
        last: value,
      });
    }
  }
  return [...sums]
    .sort(([a], [b]) => a - b)
    .map(([step, values]) => ({
      step,
      values: Object.fromEntries([...values].map(([name, entry]) => [name, average(entry)])),
    }));
}

function average({ sum, count, last }: { sum: number; count: number; last: unknown }): unknown {
  if (count === 1) return typeof last === "number" ? last : sum;
  return count > 1 ? sum / count : last;
}

/** The metrics by which verl ranks a run; the others are `val-aux`. */
const CORE = /\/(acc|accuracy|reward|score)\/(mean|best|maj)@/;

function toVerlName(name: string): { name: string; isKnown: boolean } {
  const evaluation = /^eval\/(.*)$/.exec(name);
  if (evaluation) return { name: `val-${CORE.test(name) ? "core" : "aux"}/${evaluation[1]}`, isKnown: true };
  const time = TIMES.find(([, trinity]) => trinity === name);
  if (time) return { name: time[0], isKnown: true };
  if (name.startsWith("time/")) return { name: `timing_s/${name.slice(5)}`, isKnown: true };
  return { name, isKnown: SAME.test(name) };
}

function reportOnce(seen: Set<string>, name: string, notify?: (name: string) => void): void {
  if (seen.has(name)) return;
  seen.add(name);
  notify?.(name);
}

export interface ReadRows {
  readonly rows: readonly MetricRow[];
  /** Lines that are no metric row. */
  readonly problems: readonly { readonly line: number; readonly message: string }[];
  /** True when the values are under `data`, as verl's file logger writes them. */
  readonly isNested: boolean;
}

/** Reads JSONL: `{"step": 1, "actor/lr": ...}`, or verl's `{"step": 1, "data": {...}}`. */
export function readMetricRows(text: string): ReadRows {
  const rows: MetricRow[] = [];
  const problems: { line: number; message: string }[] = [];
  let isNested = false;
  text.split("\n").forEach((line, i) => {
    if (line.trim() === "") return;
    try {
      const { step, data, ...flat } = JSON.parse(line) as { step?: unknown; data?: Record<string, unknown> };
      if (typeof step !== "number") throw new Error('it has no number "step"');
      isNested ||= data !== undefined;
      rows.push({ step, values: typeof data === "object" && data !== null ? data : flat });
    } catch (error) {
      problems.push({ line: i + 1, message: `Cannot read the metrics: ${(error as Error).message}.` });
    }
  });
  return { rows, problems, isNested };
}

export function writeMetricRows(rows: readonly MetricRow[], isNested: boolean): string {
  return rows
    .map(({ step, values }) => `${JSON.stringify(isNested ? { step, data: values } : { step, ...values })}\n`)
    .join("");
}
