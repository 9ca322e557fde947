/** Tinker's losses: sums over tokens, thresholds as absolute ratios. */
import type {
  LossDefinition,
  LossPlan,
  LossSettings,
  ShaderSettings,
  Token,
  TokenLoss,
} from "./definition.ts";
import { clamp, count } from "./definition.ts";
import { surrogate } from "./trl.ts";
import { dro } from "./verl.ts";

function crossEntropy(t: Token): TokenLoss {
  return { value: -t.logprob * t.advantage, slope: -t.advantage, metrics: [0, 0, 0] };
}

function importanceSampling(t: Token): TokenLoss {
  const plain = -t.advantage * Math.exp(t.d);
  return { value: plain, slope: plain, metrics: [0, -t.d, 0] };
}

function ppo(t: Token, s: ShaderSettings): TokenLoss {
  return surrogate(t, t.d, s);
}

function cispo(t: Token, s: ShaderSettings): TokenLoss {
  const r = Math.exp(t.d);
  const fixed = clamp(r, s.low, s.high);
  const slope = -fixed * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [count(r !== fixed), -t.d, 0] };
}

const thresholds = (s: LossSettings) => ({ low: s.clip_low_threshold!, high: s.clip_high_threshold! });

/** `ppo` counts its two sides apart; the published fraction is their sum. */
const clippedEitherSide = (m: Readonly<Record<string, number>>) => ({
  "actor/pg_clipfrac": m["actor/pg_clipfrac_low"]! + m["actor/pg_clipfrac_high"]!,
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
    plan: () => ({
      code: 12,
      settings: {},
      token: importanceSampling,
      metrics: [null, "actor/ppo_kl", null],
    }),
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
  dro: {
    settings: { beta: 0.05 },
    plan: (s) => ({
      code: 10,
      settings: { beta: s.beta! },
      token: dro,
      metrics: [null, "actor/ppo_kl", null],
    }),
  },
};

/**
 * Tinker's losses as `tinker.NAME`, and under their bare names where verl has no loss of that name.
 * The service sums; give `loss_agg_mode: "token-sum"` for its numbers.
 */
export const TINKER_LOSSES: readonly LossDefinition[] = Object.entries(LOSSES).flatMap(([name, loss]) => {
  const bare = name === "cispo" || name === "dro" ? [] : [{ name, ...loss }];
  return [{ name: `tinker.${name}`, ...loss }, ...bare];
});
