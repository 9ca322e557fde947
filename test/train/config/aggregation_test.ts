/** Losses that bring their own aggregation: no other mode is taken in silence, wherever a run trains. */
import { describe, expect, test } from "vitest";
import { AGGREGATION_MODES } from "../../../src/engine/algorithm/loss/aggregation.ts";
import { planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { findLoss, lossNames, ownAggregation } from "../../../src/engine/algorithm/loss/losses.ts";
import { checkSettings } from "../../../src/train/loop/check_settings.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { lossSpec } from "../../../src/train/loop/stages/loss_settings.ts";
import { randomBatch } from "../../engine/algorithm/random_batch.ts";
import { complaints } from "./disk.ts";

const settingsFor = (name: string): Record<string, number> => (name === "dro" ? { dro_beta: 0.05 } : {});

describe("a loss", () => {
  const batch = { ...randomBatch(11, { rows: 7, longest: 9 }), entropy: undefined };

  test.each(lossNames())("%s has the same gradient under every mode where it brings its own, else others", (name) => {
    const gradients = AGGREGATION_MODES.map((loss_agg_mode) =>
      String(policyLoss(batch, { name, loss_agg_mode, settings: settingsFor(name) }).dlogprobs),
    );
    expect(new Set(gradients).size).toBe(ownAggregation(name) === undefined ? AGGREGATION_MODES.length : 1);
  });

  test("has the mode that its published form imposes", () => {
    for (const name of lossNames()) {
      const plan = planLoss(findLoss(name), { ...findLoss(name).settings, ...settingsFor(name) });
      const imposed = plan.aggregation?.({ count: 3, longest: 5 }).mode;
      // GMPO's value is the row's: its tokens already share it.
      expect(name === "geo_mean" ? "seq-mean-token-mean" : imposed, name).toBe(ownAggregation(name));
    }
  });
});

describe("a run", () => {
  const LOSS = "rllm.algorithm.loss_fn";
  const MODE = "rllm.algorithm.loss_agg_mode";
  const REFUSED =
    /^Cannot set rllm\.algorithm\.loss_agg_mode=token-sum: the loss \S+ brings its own aggregation, \S+, and ignores every other\. Set it to \S+ or null/;

  test.each(["gspo", "sapo", "geo_mean", "trl.grpo", "trl.dr_grpo"])("with %s refuses another mode", (name) => {
    for (const backend of ["local", "tinker"]) {
      const told = (mode: string) => complaints([`rllm/backend=${backend}`, `${LOSS}=${name}`, `${MODE}=${mode}`]);
      expect(told("token-sum")).toEqual([expect.stringMatching(REFUSED)]);
      expect(told(ownAggregation(name)!)).toEqual([]);
      expect(told("null")).toEqual([]);
    }
    const settings = loopSettings({ algorithm: { loss_fn: name, loss_agg_mode: "token-sum" } });
    expect(() => checkSettings(settings, estimateAdvantages)).toThrow(REFUSED);
  });

  test.each(["vanilla", "cispo", "tinker.gspo", "importance_sampling"])("with %s takes every mode", (name) => {
    for (const mode of AGGREGATION_MODES) expect(complaints([`${LOSS}=${name}`, `${MODE}=${mode}`])).toEqual([]);
  });

  test("that sets none averages KL and entropy terms over tokens, as verl does", () => {
    const settings = loopSettings({ algorithm: { kl_beta: 0.1 } });
    for (const name of ["gspo", "vanilla"])
      expect(lossSpec({ name, loss_args: {} }, settings).loss_agg_mode).toBe("token-mean");
  });
});
