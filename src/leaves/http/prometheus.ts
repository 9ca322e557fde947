/** Metrics in Prometheus' text format. */

/** Labels of one series. */
export type Labels = Readonly<Record<string, string>>;

/** A value that goes up and down, of one series. */
export function gauge(name: string, help: string, value: number): string {
  return metric({ name, help, type: "gauge" }, [[{}, value]]);
}

/** A value that only grows, of one series. */
export function counter(name: string, help: string, value: number): string {
  return metric({ name, help, type: "counter" }, [[{}, value]]);
}

/** A metric with a value for each set of labels. */
export function metric(
  { name, help, type }: { readonly name: string; readonly help: string; readonly type: "gauge" | "counter" },
  series: readonly (readonly [labels: Labels, value: number])[],
): string {
  return [
    `# HELP ${name} ${help}`,
    `# TYPE ${name} ${type}`,
    ...series.map(([labels, value]) => `${name}${braced(labels)} ${value}`),
  ].join("\n");
}

/** Upper bounds of a histogram of durations, seconds. */
const DURATIONS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120] as const;

/** Durations by size, as Prometheus takes them. */
export class Histogram {
  readonly bounds: readonly number[] = DURATIONS;
  /** Durations up to each bound, and all. */
  readonly counts: number[] = new Array(DURATIONS.length + 1).fill(0);
  sum = 0;

  observe(seconds: number): void {
    this.sum += seconds;
    for (const [i, bound] of DURATIONS.entries()) if (seconds <= bound) this.counts[i]!++;
    this.counts[DURATIONS.length]!++;
  }
}

/** Observations by size: `counts[i]` are those up to `bounds[i]`, the last one counts all. */
export interface HistogramData {
  readonly bounds: readonly number[];
  readonly counts: readonly number[];
  readonly sum: number;
}

export function histogram(name: string, help: string, { bounds, counts, sum }: HistogramData): string {
  const buckets = [...bounds.map(String), "+Inf"].map((le, i) => `${name}_bucket${braced({ le })} ${counts[i]}`);
  return [
    `# HELP ${name} ${help}`,
    `# TYPE ${name} histogram`,
    ...buckets,
    `${name}_sum ${sum}`,
    `${name}_count ${counts[bounds.length]}`,
  ].join("\n");
}

function braced(labels: Labels): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}="${value.replace(/["\\\n]/g, "")}"`);
  return pairs.length > 0 ? `{${pairs.join(",")}}` : "";
}
