/** REINFORCE++ and its forms with a group baseline: advantages whitened over the batch. */
import { mean } from "../../../../leaves/statistics.ts";
import { countRows } from "../../rows.ts";
import { type Estimator, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";
import { whiten } from "../whitening.ts";
import { centred } from "./grpo.ts";
import { overBatchDeviation } from "./prpo.ts";
import { discountedReturns, forEachRewards } from "./returns.ts";

/**
 * A = whiten(G) with the discounted rewards to go G, which masked tokens pass on; with `reset_at_masked` they start
 * from 0 again there, as in verl of 2026-01.
 * @see https://arxiv.org/abs/2501.03262, verl core_algos.compute_reinforce_plus_plus_outcome_advantage
 */
export const reinforcePlusPlus: Estimator = {
  name: "reinforce_plus_plus",
  describe: "discounted rewards to go, whitened over the batch",
  sources: ["https://arxiv.org/abs/2501.03262"],
  elsewhere: { verl: "reinforce_plus_plus", trinity: { name: "reinforceplusplus", hasType: true } },
  settings: { gamma: 1, reset_at_masked: false },
  scope: "batch",
  estimate(batch, settings) {
    const returns = new Float64Array(batch.mask.length);
    const options = {
      gamma: settings.gamma as number,
      atMasked: settings.reset_at_masked ? ("reset" as const) : ("carry" as const),
    };
    forEachRewards(batch, (row) => discountedReturns(row, options, returns));
    return { level: "token", values: whiten(returns, batch.mask, "token"), returns };
  },
  record(r) {
    const form = r.settings.reset_at_masked ? "reset" : "discounted";
    const recorded = r.backwards(form, { gamma: r.settings.gamma as number });
    r.whitenByTokens(recorded.advantages, "token");
    return recorded;
  },
};

/**
 * A = whiten(s - mean of the group), each row weighted by its trained tokens; a group of one keeps its reward.
 * @see verl core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
 */
export const reinforcePlusPlusBaseline: Estimator = {
  name: "reinforce_plus_plus_baseline",
  describe: "each score less its group's mean, whitened over the batch by trained tokens",
  sources: ["https://arxiv.org/abs/2501.03262"],
  elsewhere: { verl: "reinforce_plus_plus_baseline" },
  settings: {},
  scope: "batch",
  estimate: (batch) => perRow(whiten(byGroup(batch, centred), countRows(batch.offsets, batch.mask).trained, "row")),
  record(r) {
    const advantages = r.group(r.need("scores"), { form: "norm" });
    r.whitenByTokens(advantages, "row");
    return { advantages };
  },
};

/**
 * A_i = (s_i - mean of the group) / (population deviation of these over the batch + epsilon); epsilon 1e-6. A group of
 * one gets 0.
 * @see rLLM trainer/algorithms
 */
export const rllmReinforcePlusPlusBaseline: Estimator = {
  name: "rllm.reinforce_plus_plus_baseline",
  describe:
    "rLLM's reinforce_plus_plus_baseline: each score less its group's mean, over the batch's population deviation plus 1e-6; alone, 0",
  sources: ["rLLM trainer/algorithms"],
  settings: { epsilon: 1e-6 },
  scope: "batch",
  estimate(batch, { epsilon }) {
    const rows = byGroup(batch, (scores) => scores.map((s) => s - mean(scores)));
    return perRow(overBatchDeviation(rows, 0, epsilon as number));
  },
  record(r) {
    const advantages = r.group(r.need("scores"), { form: "norm", aloneIsZero: true });
    r.divideByDeviation(advantages, { shift: false });
    return { advantages };
  },
};
