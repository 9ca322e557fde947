/** PRPO: scores normalised over the batch, without groups. */
import { mean, populationDeviation } from "../../../../leaves/statistics.ts";
import { type Estimator, perRow } from "../definition.ts";

/** (x - centre) / (population deviation of all rows + epsilon). */
export function overBatchDeviation(values: Float64Array, centre: number, epsilon: number): Float64Array {
  const spread = populationDeviation(values) + epsilon;
  return values.map((x) => (x - centre) / spread);
}

/**
 * A_i = (s_i - mean(s)) / (population deviation of s + epsilon) over all rows of the batch; epsilon 1e-6.
 * @see rLLM trainer/algorithms
 */
export const prpo: Estimator = {
  name: "prpo",
  describe: "each score less the batch's mean, over the population deviation plus 1e-6",
  sources: ["rLLM trainer/algorithms"],
  settings: { epsilon: 1e-6 },
  scope: "batch",
  estimate: (batch, { epsilon }) => {
    const scores = Float64Array.from(batch.scores);
    return perRow(overBatchDeviation(scores, mean(scores), epsilon as number));
  },
  record(r) {
    const advantages = r.copyOfScores();
    r.divideByDeviation(advantages, { shift: true });
    return { advantages };
  },
};
