/**
 * Tinker's losses: sums over tokens, thresholds as absolute ratios. A is the advantage, d = logprob - oldLogprob, r = e^d.
 * @see https://tinker-docs.thinkingmachines.ai/losses
 */
import {
  clamp,
  count,
  type LossDefinition,
  type LossPlan,
  type LossSettings,
  type MetricNames,
  type TokenFunction,
} from "./definition.ts";
import { surrogate } from "./trl.ts";
import { dro } from "./verl.ts";

/** L = -w logprob, with the weight w in the place of the advantage. */
const crossEntropy: TokenFunction = (t) => ({
  value: -t.logprob * t.advantage,
  slope: -t.advantage,
  metrics: [0, 0, 0],
});

/** L = -A r. */
const importanceSampling: TokenFunction = (t) => {
  const plain = -t.advantage * Math.exp(t.d);
  return { value: plain, slope: plain, metrics: [0, -t.d, 0] };
};

/** L = max(-A r, -A clip(r, low, high)). */
const ppo: TokenFunction = (t, s) => surrogate(t, t.d, s);

/** L = max(-A s, -A clip(s, low, high)) with the row's s = e^a, a = mean d; the slope is that of the token's own log-prob. */
const gspo: TokenFunction = (t, s) => surrogate(t, t.a, s);

/** L = -A detach(clip(r, low, high)) logprob. */
const cispo: TokenFunction = (t, s) => {
  const r = Math.exp(t.d);
  const fixed = clamp(r, s.low, s.high);
  const slope = -fixed * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [count(r !== fixed), -t.d, 0] };
};

const KL_METRIC: MetricNames = [null, "actor/ppo_kl", null];

const thresholds = (s: LossSettings) => ({ low: s.clip_low_threshold, high: s.clip_high_threshold });

/** `ppo` counts its two sides separately; the published fraction is their sum. */
const clippedEitherSide: NonNullable<LossPlan["derived"]> = ([low, , high]) => ({
  "actor/pg_clipfrac": low + high,
});

interface TinkerLoss {
  readonly settings: LossSettings;
  plan(s: LossSettings): LossPlan;
}

const LOSSES: Readonly<Record<string, TinkerLoss>> = {
  cross_entropy: {
    settings: {},
    plan: () => ({ code: 11, settings: {}, token: crossEntropy, metrics: [null, null, null] }),
  },
  importance_sampling: {
    settings: {},
    plan: () => ({ code: 12, settings: {}, token: importanceSampling, metrics: KL_METRIC }),
  },
  ppo: {
    settings: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
    plan: (s) => ({
      code: 13,
      settings: thresholds(s),
      token: ppo,
      metrics: ["actor/pg_clipfrac_low", "actor/ppo_kl", "actor/pg_clipfrac_high"],
      derived: clippedEitherSide,
    }),
  },
  cispo: {
    settings: { clip_low_threshold: 0, clip_high_threshold: 4 },
    plan: (s) => ({
      code: 14,
      settings: thresholds(s),
      token: cispo,
      metrics: ["actor/pg_clipfrac", "actor/ppo_kl", null],
    }),
  },
  // The bounds of GSPO's paper (2507.18071): 1 - 3e-4 and 1 + 4e-4.
  gspo: {
    settings: { clip_low_threshold: 0.9997, clip_high_threshold: 1.0004 },
    plan: (s) => ({
      code: 20,
      settings: thresholds(s),
      token: gspo,
      rows: "mean-log-ratio",
      metrics: ["actor/pg_clipfrac_low", "actor/ppo_kl", "actor/pg_clipfrac_high"],
      derived: clippedEitherSide,
    }),
  },
  dro: {
    settings: { beta: 0.05 },
    plan: (s) => ({ code: 10, settings: { beta: s.beta }, token: dro, metrics: KL_METRIC }),
  },
};

/**
 * Tinker's losses as `tinker.NAME`, and under their bare names where verl has no loss of that name.
 * The service sums; give `loss_agg_mode: "token-sum"` for its numbers.
 */
export const TINKER_LOSSES: readonly LossDefinition[] = Object.entries(LOSSES).flatMap(([name, loss]) => {
  const bare = ["cispo", "dro", "gspo"].includes(name) ? [] : [{ name, ...loss }];
  return [{ name: `tinker.${name}`, ...loss }, ...bare];
});
