import { expect, test } from "vitest";
import { chartCard, ticks } from "../../src/log/chart.ts";
import type { MetricsLine, SampleLine } from "../../src/log/jsonl.ts";
import { renderReport } from "../../src/log/report.ts";

const METRICS: MetricsLine[] = [
  { phase: "warmup", step: 1, "warmup/loss": 2.5, "time/step": 0.5 },
  { phase: "val", step: 0, "val/sums/pass@1": 0.25 },
  ...Array.from({ length: 40 }, (_, i) => ({
    phase: "train" as const,
    step: i + 1,
    "reward/adder/mean": i / 40,
    "actor/entropy": 1 / (i + 1),
    "actor/ppo_kl": 0.001 * i,
    "actor/pg_clipfrac": 0.01,
    "response_length/mean": 3,
    "perf/throughput": 1000 + i,
    "time/step": 1,
  })),
  { phase: "val", step: 40, "val/sums/pass@1": 0.75 },
];

const SAMPLES: SampleLine[] = [
  {
    step: 0,
    task: "t1",
    prompt: "1+1=",
    response: "<script>alert(1)</script>",
    reward: 0,
    is_correct: false,
  },
  { step: 40, task: "t1", prompt: "1+1=", response: "2", reward: 1, is_correct: true },
];

const page = renderReport({
  title: "a & b",
  subtitle: "adding",
  metrics: METRICS,
  samples: SAMPLES,
  config: "x: 1",
});

test("renderReport() draws every published curve", () => {
  for (const metric of [
    "reward/&lt;role&gt;/mean",
    "val/sums/pass@1",
    "actor/ppo_kl",
    "actor/entropy",
    "actor/pg_clipfrac",
    "response_length/mean",
    "perf/throughput",
    "warmup/loss",
  ]) {
    expect(page).toContain(`<code>${metric}</code>`);
  }
  expect(page).toContain('0.25<span class="arrow">→</span>0.75');
});

test("renderReport() loads nothing from anywhere", () => {
  expect(page).not.toMatch(/https?:\/\/|src=|@import|url\(/);
});

test("renderReport() shows what the model said as text", () => {
  expect(page).not.toContain("<script>alert");
  expect(page).toContain("&lt;script&gt;alert(1)&lt;/script&gt;");
  expect(page).toContain("<title>a &amp; b");
});

test("renderReport() of a run without a step is a page all the same", () => {
  expect(renderReport({ title: "t", subtitle: "s", metrics: [], samples: [] })).toContain("</html>");
});

test.each([
  [0, 1, 4, [0, 0.5, 1]],
  [0, 10, 5, [0, 2, 4, 6, 8, 10]],
  [-3, 7, 4, [0, 5]],
  [0.0012, 0.0049, 4, [0.002, 0.003, 0.004]],
  [5, 5, 4, [5]],
])("ticks(%d, %d) are round", (low, high, count, expected) => {
  expect(ticks(low, high, count)).toEqual(expected);
});

test("a chart keeps its curve within its frame", () => {
  const svg = chartCard(
    {
      points: [
        [1, -5],
        [2, 100],
        [3, 7],
      ],
    },
    { title: "t", metric: "m" },
  );
  const ys = [...(/class="line" d="([^"]*)"/.exec(svg)?.[1] ?? "").matchAll(/[ML][\d.]+ ([\d.]+)/g)].map(
    (m) => Number(m[1]),
  );
  expect(ys).toHaveLength(3);
  expect(Math.min(...ys)).toBeGreaterThanOrEqual(12);
  expect(Math.max(...ys)).toBeLessThanOrEqual(184);
});

test("a chart of values that are not finite draws what is", () => {
  expect(chartCard({ points: [[1, Number.NaN]] }, { title: "t", metric: "m" })).toBe("");
  expect(
    chartCard(
      {
        points: [
          [1, Number.NaN],
          [2, 3],
        ],
      },
      { title: "t", metric: "m" },
    ),
  ).toContain('data-points="[[2,3]]"');
});
