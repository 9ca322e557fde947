/** REINFORCE without a baseline. */
import { type Estimator, perRow } from "../definition.ts";

/** A_i = s_i. */
export const reinforce: Estimator = {
  name: "reinforce",
  settings: {},
  scope: "row",
  estimate: (batch) => perRow(Float64Array.from(batch.scores)),
};
