/** REINFORCE without a baseline. */
import { type Estimator, perRow } from "../definition.ts";

/** A_i = s_i. */
export const reinforce: Estimator = {
  name: "reinforce",
  describe: "the score itself",
  sources: ["rLLM trainer/algorithms"],
  settings: {},
  scope: "row",
  estimate: (batch) => perRow(Float64Array.from(batch.scores)),
  record: (r) => ({ advantages: r.copyOfScores() }),
};
