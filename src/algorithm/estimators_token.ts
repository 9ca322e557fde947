/** Estimators that give one advantage per token, in float64. Default semantics are verl 0.10's. */
import type { AdvantageBatch, Estimate, Estimator, EstimatorSettings } from "./estimator.ts";
import { needs } from "./estimator.ts";
import { baselineAdvantages } from "./optimal_baseline.ts";
import { whitening } from "./statistics.ts";

/** Token rewards, or the score at each row's last trained token. */
export function tokenRewardsOf(batch: AdvantageBatch): ArrayLike<number> {
  if (batch.tokenRewards) return batch.tokenRewards;
  const { offsets, mask, scores } = batch;
  const rewards = new Float64Array(mask.length);
  for (let row = 0; row + 1 < offsets.length; row++) {
    let last = offsets[row + 1] - 1;
    while (last >= offsets[row] && mask[last] === 0) last--;
    if (last >= offsets[row]) rewards[last] = scores[row];
  }
  return rewards;
}

/** Walks every row from its last token to its first; `step` gets the token and what the one after it returned. */
export function backwards(
  offsets: Uint32Array,
  step: (t: number, carry: number, row: number) => number,
): void {
  for (let row = 0; row + 1 < offsets.length; row++) {
    let carry = 0;
    for (let t = offsets[row + 1] - 1; t >= offsets[row]; t--) carry = step(t, carry, row);
  }
}

/** Sum of what a row still earns, from each token on: G_t = R_t m_t + G_{t+1}. */
export function rewardsToGo(batch: AdvantageBatch): Float64Array {
  const rewards = tokenRewardsOf(batch);
  const toGo = new Float64Array(batch.mask.length);
  backwards(batch.offsets, (t, carry) => {
    toGo[t] = carry + (batch.mask[t] === 0 ? 0 : rewards[t]);
    return toGo[t];
  });
  return toGo;
}

/** Whitens trained tokens; the others become 0. */
function whitenTokens(values: Float64Array, mask: Uint32Array): Float64Array {
  const { mean, scale } = whitening(values, mask);
  return values.map((x, t) => (mask[t] === 0 ? 0 : (x - mean) * scale));
}

/**
 * Generalised advantage estimation over trained tokens: g = R + gamma V_next - V + gamma lam g_next, with V_next and
 * g_next carried over masked ones. Returns are taken before whitening.
 */
function gae(batch: AdvantageBatch, { gamma, lam }: EstimatorSettings): Estimate {
  const values = needs(batch.values, "gae", "values");
  const rewards = tokenRewardsOf(batch);
  const { mask, offsets } = batch;
  const advantages = new Float64Array(mask.length);
  for (let row = 0; row + 1 < offsets.length; row++) {
    let nextValue = 0;
    let next = 0;
    for (let t = offsets[row + 1] - 1; t >= offsets[row]; t--) {
      if (mask[t] === 0) continue;
      next =
        rewards[t] + (gamma as number) * nextValue - values[t] + (gamma as number) * (lam as number) * next;
      nextValue = values[t];
      advantages[t] = next;
    }
  }
  const returns = advantages.map((a, t) => (mask[t] === 0 ? 0 : a + values[t]));
  return { level: "token", advantages: whitenTokens(advantages, mask), returns };
}

/** REINFORCE++: discounted rewards to go, whitened. Masked tokens pass the running return on (or reset it, in 2026-01). */
function reinforcePlusPlus(batch: AdvantageBatch, settings: EstimatorSettings): Estimate {
  const { mask, offsets } = batch;
  const rewards = tokenRewardsOf(batch);
  const gamma = settings.gamma as number;
  const returns = new Float64Array(mask.length);
  backwards(offsets, (t, carry) => {
    const running = rewards[t] + gamma * carry;
    if (settings.reset_at_masked) {
      returns[t] = running;
      return mask[t] === 0 ? 0 : running;
    }
    if (mask[t] === 0) return carry;
    returns[t] = running;
    return running;
  });
  return { level: "token", advantages: whitenTokens(returns, mask), returns };
}

/** ReMax: rewards to go minus the greedy rollout's reward. */
function remax(batch: AdvantageBatch): Estimate {
  const baselines = needs(batch.rewardBaselines, "remax", "reward_baselines");
  const returns = rewardsToGo(batch);
  const advantages = new Float64Array(returns.length);
  backwards(batch.offsets, (t, _, row) => {
    advantages[t] = returns[t] - (batch.mask[t] === 0 ? 0 : baselines[row]);
    return 0;
  });
  return { level: "token", advantages, returns };
}

export const TOKEN_ESTIMATORS: readonly Estimator[] = [
  { name: "gae", settings: { gamma: 1, lam: 1 }, scope: "batch", estimate: gae },
  {
    name: "reinforce_plus_plus",
    settings: { gamma: 1, reset_at_masked: false },
    scope: "batch",
    estimate: reinforcePlusPlus,
  },
  { name: "remax", settings: {}, scope: "row", estimate: remax },
  {
    name: "optimal_token_baseline",
    settings: { handle_zero_tail: true },
    scope: "group",
    estimate: (batch, s) =>
      baselineAdvantages(batch, { compact: false, zeroTail: s.handle_zero_tail === true }),
  },
  {
    name: "tir_optimal_token_baseline",
    settings: { handle_zero_tail: true },
    scope: "group",
    estimate: (batch, s) =>
      baselineAdvantages(batch, { compact: true, zeroTail: s.handle_zero_tail === true }),
  },
];
