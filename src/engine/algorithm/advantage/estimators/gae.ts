/** GAE: generalised advantages from a critic's values, whitened over the batch. */
import { type Estimator, needs } from "../definition.ts";
import { whiten } from "../whitening.ts";
import { type FloatOutput, forEachRewards, type RowRewards } from "./returns.ts";

/**
 * A_t = R_t + gamma V_{t+1} - V_t + gamma lam A_{t+1} of one row, before whitening; V and A of the next trained token,
 * carried over masked ones, where both outputs are 0. Returns are A_t + V_t.
 * @see https://arxiv.org/abs/1506.02438, equation 16
 */
export function gaeRow(
  { first, end, mask, reward }: RowRewards,
  values: ArrayLike<number>,
  { gamma, lam }: { gamma: number; lam: number },
  out: { advantages: FloatOutput; returns: FloatOutput },
): void {
  let nextValue = 0;
  let next = 0;
  for (let t = end - 1; t >= first; t--) {
    const isTrained = mask[t] !== 0;
    const value = values[t]!;
    if (isTrained) {
      next = reward(t) + gamma * nextValue - value + gamma * lam * next;
      nextValue = value;
    }
    out.advantages[t] = isTrained ? next : 0;
    out.returns[t] = isTrained ? next + value : 0;
  }
}

/**
 * Advantages are whitened, returns are not.
 * @see verl core_algos.compute_gae_advantage_return
 */
export const gae: Estimator = {
  name: "gae",
  describe: "generalised advantages from a critic's values, whitened over the batch",
  sources: ["https://arxiv.org/abs/1506.02438"],
  elsewhere: { verl: "gae", trinity: { name: "ppo", hasType: true } },
  settings: { gamma: 1, lam: 1 },
  scope: "batch",
  estimate(batch, settings) {
    const values = needs(batch.values, "gae", "values");
    const advantages = new Float64Array(batch.mask.length);
    const returns = new Float64Array(batch.mask.length);
    const discounts = settings as { gamma: number; lam: number };
    forEachRewards(batch, (row) => gaeRow(row, values, discounts, { advantages, returns }));
    return { level: "token", values: whiten(advantages, batch.mask, "token"), returns };
  },
  record(r) {
    const { gamma, lam } = r.settings as { gamma: number; lam: number };
    const recorded = r.backwards("gae", { values: r.need("values"), gamma, lam });
    r.whitenByTokens(recorded.advantages, "token");
    return recorded;
  },
};
