import { describe, expect, test } from "vitest";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import type { PolicyLossSpec } from "../../../src/engine/algorithm/loss/resolve.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";
import { BATCHES, F32, F64, furthest, lossBatch, readGolden, readRows } from "./golden.ts";

interface LossCase {
  loss: string;
  loss_agg_mode: string;
  params: Record<string, number>;
  rollout_is_weights: { level: string; cap: number } | null;
  value: number;
  dlogprobs: number[][];
  metrics: Record<string, number>;
  loss_scale_factor: number | null;
}

/** Set when the figures were recorded, not repeated in each case. */
const RECORDED_WITH = { kl_cov_ratio: 0.05, ppo_kl_coef: 0.1, dro_beta: 0.05 };

function specOf(golden: LossCase): PolicyLossSpec {
  return {
    name: golden.loss,
    loss_agg_mode: golden.loss_agg_mode,
    settings: { ...golden.params, ...RECORDED_WITH },
    loss_scale_factor: golden.loss_scale_factor ?? undefined,
  };
}

describe.each(BATCHES)("policy losses in float64 equal the published ones on %s", (name) => {
  const rows = readRows(name);
  const cases = readGolden<LossCase[]>(`${name}.losses.json`);
  test.each(cases.map((c) => ({ title: `${c.loss} ${c.loss_agg_mode} weights ${c.rollout_is_weights !== null}`, c })))(
    "$title",
    ({ c }) => {
      const got = policyLoss(lossBatch(rows, c.rollout_is_weights !== null), specOf(c));
      expect(furthest([got.loss], [c.value], F64)).toBeUndefined();
      expect(furthest(got.dlogprobs, c.dlogprobs.flat(), F64)).toBeUndefined();
      expect(Object.keys(got.metrics).sort()).toEqual(Object.keys(c.metrics).sort());
      for (const [key, value] of Object.entries(c.metrics))
        expect(furthest([got.metrics[key]!], [value], F64), key).toBeUndefined();
    },
  );
});

overDevices("policy losses equal the published ones", (device) => {
  describe.each(BATCHES)("on %s", (name) => {
    const rows = readRows(name);
    const cases = readGolden<LossCase[]>(`${name}.losses.json`);
    test.each(
      cases.map((c) => ({
        title: `${c.loss} ${c.loss_agg_mode} weights ${c.rollout_is_weights !== null}`,
        c,
      })),
    )("$title", async ({ c }) => {
      const batch = lossBatch(rows, c.rollout_is_weights !== null);
      const got = await deviceLoss(device, batch, specOf(c));
      expect(furthest([got.loss], [c.value], F32)).toBeUndefined();
      expect(furthest(got.dlogprobs, c.dlogprobs.flat(), F32)).toBeUndefined();
      for (const [key, value] of Object.entries(c.metrics))
        expect(furthest([got.metrics[key]!], [value], F32), key).toBeUndefined();
    });
  });
});
