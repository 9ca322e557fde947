/** Metric names of verl and Trinity-RFT. */
import { describe, expect, test } from "vitest";
import {
  metricsToTrinity,
  metricsToVerl,
  readMetricRows,
  writeMetricRows,
} from "../../../src/cluster/convert/metrics.ts";

const VERL = [
  {
    step: 1,
    values: {
      "actor/pg_loss": 0.5,
      "critic/score/mean": 0.25,
      "timing_s/step": 12,
      "timing_s/gen": 5,
      "val-core/gsm8k/reward/mean@1": 0.3,
      "val-aux/gsm8k/length/mean@1": 100,
      "timing_s/testing": 3,
      "training/global_step": 1,
    },
  },
  { step: 2, values: { "actor/pg_loss": 0.4 } },
];

describe("metric logs", () => {
  test("verl to the two runs of Trinity, steps scaled", () => {
    const unmapped: string[] = [];
    const split = metricsToTrinity(VERL, { syncInterval: 4, onUnmapped: (name) => unmapped.push(name) });
    expect(split.explorer).toEqual([
      {
        step: 4,
        values: { "eval/gsm8k/reward/mean@1": 0.3, "eval/gsm8k/length/mean@1": 100, "time/eval": 3 },
      },
    ]);
    expect(split.trainer).toEqual([
      {
        step: 4,
        values: {
          "actor/pg_loss": 0.5,
          "critic/score/mean": 0.25,
          "time/train_step": 12,
          "time/gen": 5,
          "training/global_step": 1,
        },
      },
      { step: 8, values: { "actor/pg_loss": 0.4 } },
    ]);
    expect(unmapped).toEqual(["training/global_step"]);
  });

  test("and back: nothing is lost", () => {
    expect(metricsToVerl(metricsToTrinity(VERL, { syncInterval: 4 }), { syncInterval: 4 })).toEqual(VERL);
  });

  test("Trinity steps of one iteration are averaged", () => {
    const trainer = [1, 2, 3, 4, 5].map((step) => ({
      step,
      values: { "actor/pg_loss": step, note: `s${step}` },
    }));
    expect(metricsToVerl({ explorer: [], trainer }, { syncInterval: 4 })).toEqual([
      { step: 1, values: { "actor/pg_loss": 2.5, note: "s4" } },
      { step: 2, values: { "actor/pg_loss": 5, note: "s5" } },
    ]);
  });

  test("names that only Trinity has are kept and reported once", () => {
    const unmapped: string[] = [];
    const explorer = [1, 2].map((step) => ({ step, values: { "rollout/accuracy/mean": 0.5 } }));
    const rows = metricsToVerl(
      { explorer, trainer: [] },
      { syncInterval: 1, onUnmapped: (name) => unmapped.push(name) },
    );
    expect(rows[0]!.values).toEqual({ "rollout/accuracy/mean": 0.5 });
    expect(unmapped).toEqual(["rollout/accuracy/mean"]);
  });

  test("both forms of JSONL are read and written back in the same form", () => {
    const flat = '{"step":1,"actor/lr":1e-6}\n';
    const nested = '{"step":1,"data":{"actor/lr":1e-6}}\n';
    for (const text of [flat, nested]) {
      const { rows, isNested, problems } = readMetricRows(text);
      expect(problems).toEqual([]);
      expect(rows).toEqual([{ step: 1, values: { "actor/lr": 1e-6 } }]);
      expect(JSON.parse(writeMetricRows(rows, isNested))).toEqual(JSON.parse(text));
    }
    expect(readMetricRows('{"step":1}\n\nnope\n{"a":1}\n').problems.map(({ line }) => line)).toEqual([3, 4]);
  });
});
