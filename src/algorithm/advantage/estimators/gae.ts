/** Estimators that give one advantage per token, in float64. Default semantics are verl 0.10's. */
import type { AdvantageBatch, Estimate, Estimator, EstimatorSettings } from "../definition.ts";
import { needs } from "../definition.ts";
import { whitening } from "../whitening.ts";
import { baselineAdvantages, runningPower } from "./optimal_token_baseline.ts";

/** Index of a row's last trained token; -1 where it has none. */
export function lastTrained(mask: ArrayLike<number>, first: number, end: number): number {
  for (let t = end - 1; t >= first; t--) if (mask[t] !== 0) return t;
  return -1;
}

/** Token rewards, or the score at each row's last trained token. */
export function tokenRewardsOf(batch: AdvantageBatch): ArrayLike<number> {
  if (batch.tokenRewards) return batch.tokenRewards;
  const { offsets, mask, scores } = batch;
  const rewards = new Float64Array(mask.length);
  for (let row = 0; row + 1 < offsets.length; row++) {
    const last = lastTrained(mask, offsets[row]!, offsets[row + 1]!);
    if (last >= 0) rewards[last] = scores[row]!;
  }
  return rewards;
}

/** One row's tokens and what they earn. */
export interface RowRewards {
  readonly first: number;
  readonly end: number;
  readonly mask: ArrayLike<number>;
  reward(t: number): number;
}

type Output = Float32Array | Float64Array;

/**
 * G_t = R_t + gamma G_{t+1} over a row's trained tokens. What a masked token does with the running return:
 * `carry` passes it on and shows 0, `carry and show` passes it on and shows it, `reset` shows its own and starts anew.
 */
export function discountedReturns(
  { first, end, mask, reward }: RowRewards,
  options: { gamma: number; atMasked: "carry" | "carry and show" | "reset" },
  returns: Output,
): void {
  const { gamma, atMasked } = options;
  let next = 0;
  for (let t = end - 1; t >= first; t--) {
    const running = reward(t) + gamma * next;
    if (mask[t] !== 0) {
      next = running;
      returns[t] = running;
    } else {
      returns[t] = atMasked === "reset" ? running : atMasked === "carry" ? 0 : next;
      if (atMasked === "reset") next = 0;
    }
  }
}

/** Generalised advantages of one row, before whitening; V_next and g_next are carried over masked tokens. */
export function gaeRow(
  { first, end, mask, reward }: RowRewards,
  values: ArrayLike<number>,
  { gamma, lam }: { gamma: number; lam: number },
  out: { advantages: Output; returns: Output },
): void {
  let nextValue = 0;
  let next = 0;
  for (let t = end - 1; t >= first; t--) {
    const trained = mask[t] !== 0;
    if (trained) {
      next = reward(t) + gamma * nextValue - values[t]! + gamma * lam * next;
      nextValue = values[t]!;
    }
    out.advantages[t] = trained ? next : 0;
    out.returns[t] = trained ? next + values[t]! : 0;
  }
}

/** Every row of a batch with its rewards. */
function* rowsOf(batch: AdvantageBatch): Generator<RowRewards & { row: number }> {
  const rewards = tokenRewardsOf(batch);
  const reward = (t: number) => rewards[t]!;
  for (let row = 0; row + 1 < batch.offsets.length; row++)
    yield { row, first: batch.offsets[row]!, end: batch.offsets[row + 1]!, mask: batch.mask, reward };
}

/** Sum of what a row still earns on trained tokens, from each token on. */
export function rewardsToGo(batch: AdvantageBatch): Float64Array {
  const returns = new Float64Array(batch.mask.length);
  for (const row of rowsOf(batch)) discountedReturns(row, { gamma: 1, atMasked: "carry and show" }, returns);
  return returns;
}

/** Whitens trained tokens; the others become 0. */
function whitenTokens(values: Float64Array, mask: Uint32Array): Float64Array {
  const { mean, scale } = whitening(values, mask);
  return values.map((x, t) => (mask[t] === 0 ? 0 : (x - mean) * scale));
}

/** Generalised advantage estimation, whitened. Returns are taken before whitening. */
function gae(batch: AdvantageBatch, settings: EstimatorSettings): Estimate {
  const values = needs(batch.values, "gae", "values");
  const { gamma, lam } = settings as { gamma: number; lam: number };
  const advantages = new Float64Array(batch.mask.length);
  const returns = new Float64Array(batch.mask.length);
  for (const row of rowsOf(batch)) gaeRow(row, values, { gamma, lam }, { advantages, returns });
  return { level: "token", values: whitenTokens(advantages, batch.mask), returns };
}

/** REINFORCE++: discounted rewards to go, whitened. Masked tokens pass the running return on (or reset it, in 2026-01). */
function reinforcePlusPlus(batch: AdvantageBatch, settings: EstimatorSettings): Estimate {
  const returns = new Float64Array(batch.mask.length);
  const atMasked = settings.reset_at_masked ? "reset" : "carry";
  for (const row of rowsOf(batch))
    discountedReturns(row, { gamma: settings.gamma as number, atMasked }, returns);
  return { level: "token", values: whitenTokens(returns, batch.mask), returns };
}

/** ReMax: rewards to go minus the greedy rollout's reward. */
function remax(batch: AdvantageBatch): Estimate {
  const baselines = needs(batch.rewardBaselines, "remax", "reward_baselines");
  const returns = rewardsToGo(batch);
  const advantages = returns.slice();
  for (const { row, first, end, mask } of rowsOf(batch))
    for (let t = first; t < end; t++) if (mask[t] !== 0) advantages[t]! -= baselines[row]!;
  return { level: "token", values: advantages, returns };
}

function optimalBaseline(compact: boolean) {
  return (batch: AdvantageBatch, settings: EstimatorSettings): Estimate => {
    const returns = rewardsToGo(batch);
    const advantages = new Float64Array(returns.length);
    const options = { compact, zeroTail: settings.handle_zero_tail === true };
    const power = runningPower({
      ...batch,
      oldLogprobs: needs(batch.oldLogprobs, "optimal_token_baseline", "old_logprobs"),
      sumPiSquared: needs(batch.sumPiSquared, "optimal_token_baseline", "sum_pi_squared"),
    });
    baselineAdvantages(batch, { returns, power, advantages }, options);
    return { level: "token", values: advantages, returns };
  };
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
    estimate: optimalBaseline(false),
  },
  {
    name: "tir_optimal_token_baseline",
    settings: { handle_zero_tail: true },
    scope: "group",
    estimate: optimalBaseline(true),
  },
];
