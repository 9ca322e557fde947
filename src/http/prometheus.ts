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
