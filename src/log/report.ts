/** The report of a run: one HTML file that opens offline, with its curves and what the model says before and after. */
import { type ChartOptions, chartCard, escapeHtml } from "./chart.ts";
import { meanReward } from "./console.ts";
import { duration, shortNumber } from "./format.ts";
import type { MetricsLine, SampleLine } from "./jsonl.ts";
import { SCRIPT, STYLE } from "./report_page.ts";

export interface ReportData {
  readonly title: string;
  /** One sentence under the title: the task, the model, the device. */
  readonly subtitle: string;
  readonly metrics: readonly MetricsLine[];
  readonly samples: readonly SampleLine[];
  /** The run's settings, as text. */
  readonly config?: string;
}

/** Renders the whole page. */
export function renderReport(data: ReportData): string {
  const { title, subtitle, metrics, samples, config } = data;
  const train = metrics.filter((line) => line.phase === "train");
  const val = metrics.filter((line) => line.phase === "val");
  const warmup = metrics.filter((line) => line.phase === "warmup");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} · grpu</title>
<style>${STYLE}</style>
</head>
<body>
<main>
<header><div><h1>${escapeHtml(title)}</h1><p class="soft">${escapeHtml(subtitle)}</p></div><button class="theme" type="button">Light / dark</button></header>
${tiles({ train, val, warmup })}
<h2>Training</h2>
<div class="charts">${trainingCharts(train, val)}</div>
${warmup.length > 0 ? `<h2>Warm-up</h2><div class="charts">${chart(warmup, WARMUP_CHART)}</div>` : ""}
${sampleTable(samples)}
${config === undefined ? "" : `<details class="card"><summary>Settings of this run</summary><pre>${escapeHtml(config)}</pre></details>`}
</main>
<script>${SCRIPT}</script>
</body>
</html>
`;
}

type Lines = readonly MetricsLine[];
interface Chart extends ChartOptions {
  readonly value: (line: MetricsLine) => number | undefined;
}

const WARMUP_CHART: Chart = { title: "Cross-entropy", metric: "warmup/loss", value: at("warmup/loss") };

const TRAINING_CHARTS: readonly Chart[] = [
  { title: "KL to the policy before each update", metric: "actor/ppo_kl", value: at("actor/ppo_kl") },
  { title: "Entropy", metric: "actor/entropy", unit: "nats", value: at("actor/entropy") },
  { title: "Clip fraction", metric: "actor/pg_clipfrac", value: at("actor/pg_clipfrac") },
  {
    title: "Response length",
    metric: "response_length/mean",
    unit: "tokens",
    value: at("response_length/mean"),
  },
  { title: "Speed", metric: "perf/throughput", unit: "tokens/s", value: at("perf/throughput") },
  { title: "Gradient norm", metric: "actor/grad_norm", value: at("actor/grad_norm") },
  {
    title: "Tasks that teach",
    metric: "batch/solve_partial",
    range: [0, 1],
    value: at("batch/solve_partial"),
  },
];

function trainingCharts(train: Lines, val: Lines): string {
  const isShare = train.every((line) => inUnit(reward(line)));
  const rewards: Chart = {
    title: "Reward",
    metric: "reward/<role>/mean",
    ...(isShare && { range: [0, 1] as const }),
    value: reward,
  };
  const accuracy = accuracyNames(val).map(
    (name): Chart => ({
      title: "Validation accuracy",
      metric: name,
      range: [0, 1],
      marked: true,
      value: at(name),
    }),
  );
  return (
    chart(train, rewards) +
    accuracy.map((each) => chart(val, each)).join("") +
    TRAINING_CHARTS.map((each) => chart(train, each)).join("")
  );
}

function chart(lines: Lines, { value, ...options }: Chart): string {
  const points = lines.flatMap((line): [number, number][] => {
    const y = value(line);
    return y === undefined ? [] : [[line.step, y]];
  });
  return chartCard({ points }, options);
}

function at(name: string) {
  return (line: MetricsLine): number | undefined => {
    const value = line[name];
    return typeof value === "number" ? value : undefined;
  };
}

function reward(line: MetricsLine): number | undefined {
  return meanReward(line as unknown as Record<string, number>);
}

function inUnit(value: number | undefined): boolean {
  return value === undefined || (value >= 0 && value <= 1);
}

function accuracyNames(val: Lines): string[] {
  return [...new Set(val.flatMap((line) => Object.keys(line)))].filter((name) => name.endsWith("/pass@1"));
}

function tiles({ train, val, warmup }: { train: Lines; val: Lines; warmup: Lines }): string {
  const [accuracy] = accuracyNames(val);
  const seconds = [...warmup, ...train].reduce((sum, line) => sum + (at("time/step")(line) ?? 0), 0);
  const testing = val.reduce((sum, line) => sum + (at("time/testing")(line) ?? 0), 0);
  const tokens = train.reduce((sum, line) => sum + (at("perf/total_num_tokens")(line) ?? 0), 0);
  const cards = [
    accuracy === undefined ? undefined : fromTo("validation accuracy", val.map(at(accuracy))),
    fromTo("mean reward", train.map(reward)),
    tile(String(train.at(-1)?.step ?? 0), "training steps"),
    tile(duration(seconds + testing), "in all"),
    tile(shortNumber(tokens), "tokens trained on"),
  ];
  return `<div class="tiles">${cards.filter(Boolean).join("")}</div>`;
}

function fromTo(label: string, values: readonly (number | undefined)[]): string | undefined {
  const known = values.filter((value) => value !== undefined);
  if (known.length === 0) return undefined;
  const [first, last] = [known[0], known[known.length - 1]];
  return tile(`${first.toFixed(2)}<span class="arrow">→</span>${last.toFixed(2)}`, label);
}

function tile(value: string, label: string): string {
  return `<div class="card tile"><b>${value}</b><span>${escapeHtml(label)}</span></div>`;
}

/** The same tasks at the first and at the last validation, side by side. */
function sampleTable(samples: readonly SampleLine[]): string {
  if (samples.length === 0) return "";
  const steps = [...new Set(samples.map((sample) => sample.step))];
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const after = new Map(samples.filter(({ step }) => step === last).map((sample) => [sample.task, sample]));
  const rows = samples
    .filter(({ step }) => step === first)
    .map((before) => sampleRow(before, first === last ? undefined : after.get(before.task)));
  const head =
    first === last
      ? `<th>Step ${first}</th>`
      : `<th>Before (step ${first})</th><th>After (step ${last})</th>`;
  return `<h2>What it says</h2><div class="card scroll"><table class="samples"><thead><tr><th>Prompt</th>${head}</tr></thead><tbody>${rows.join("")}</tbody></table></div>`;
}

function sampleRow(before: SampleLine, after: SampleLine | undefined): string {
  const cell = (sample: SampleLine) => {
    const mark = sample.is_correct ? "mark-good" : "mark-bad";
    const value = sample.reward === null ? "failed" : shortNumber(sample.reward);
    return `<td><span class="mono">${escapeHtml(sample.response)}</span><span class="${mark}">${value}</span></td>`;
  };
  return `<tr><td class="mono">${escapeHtml(before.prompt)}</td>${cell(before)}${after ? cell(after) : ""}</tr>`;
}
