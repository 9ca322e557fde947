/** verl's policy losses (0.10 dev, core_algos.py), one function of a token each, in float64. */
import { ConfigError } from "../../errors.ts";
import type {
  LossDefinition,
  LossPlan,
  LossSettings,
  ShaderSettings,
  Token,
  TokenLoss,
} from "./definition.ts";
import { clamp, count } from "./definition.ts";

const MAX_LOG_RATIO = 20;
/** GSPO bounds the row's log-ratio from above. */
const MAX_SEQUENCE_LOG_RATIO = 10;

const bounded = (d: number) => clamp(d, -MAX_LOG_RATIO, MAX_LOG_RATIO);

function vanilla(t: Token, s: ShaderSettings): TokenLoss {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const plain = -t.advantage * r;
  const clipped = -t.advantage * clamp(r, s.low, s.high);
  const worse = Math.max(plain, clipped);
  const ceiling = -t.advantage * s.cap;
  const capped = t.advantage < 0 && worse > ceiling;
  const flows = (plain > clipped || (r >= s.low && r <= s.high)) && !capped && Math.abs(t.d) <= MAX_LOG_RATIO;
  return {
    value: capped ? ceiling : worse,
    slope: flows ? plain : 0,
    metrics: [count(clipped > plain), -d, count(capped)],
  };
}

function gspo(t: Token, s: ShaderSettings): TokenLoss {
  const r = Math.exp(Math.min(t.a, MAX_SEQUENCE_LOG_RATIO));
  const plain = -t.advantage * r;
  const clipped = -t.advantage * clamp(r, s.low, s.high);
  const flows = (plain > clipped || (r >= s.low && r <= s.high)) && t.a <= MAX_SEQUENCE_LOG_RATIO;
  return {
    value: Math.max(plain, clipped),
    slope: flows ? plain : 0,
    metrics: [count(clipped > plain), -t.d, 0],
  };
}

/** L = -A (4 / tau) sigmoid(tau (r - 1)): value and slope. */
export function softGate(advantage: number, r: number, s: ShaderSettings): { value: number; slope: number } {
  const tau = advantage > 0 ? s.tau_pos : s.tau_neg;
  const gate = 1 / (1 + Math.exp(-tau * (r - 1)));
  return { value: (-advantage * gate * 4) / tau, slope: -advantage * 4 * gate * (1 - gate) * r };
}

function sapo(t: Token, s: ShaderSettings): TokenLoss {
  const d = bounded(t.d);
  const { value, slope } = softGate(t.advantage, Math.exp(d), s);
  return { value, slope: Math.abs(t.d) <= MAX_LOG_RATIO ? slope : 0, metrics: [0, -d, 0] };
}

function gpg(t: Token): TokenLoss {
  return { value: -t.logprob * t.advantage, slope: -t.advantage, metrics: [0, -t.d, 0] };
}

function clipCov(t: Token, s: ShaderSettings): TokenLoss {
  const r = Math.exp(t.d);
  const plain = -t.advantage * r;
  const clipped = -t.advantage * clamp(r, s.low, s.high);
  const dropped = t.a > 0.5;
  const flows = (plain > clipped || (r >= s.low && r <= s.high)) && !dropped;
  return {
    value: dropped ? 0 : Math.max(plain, clipped),
    slope: flows ? plain : 0,
    metrics: [count(dropped), -t.d, 0],
  };
}

function klCov(t: Token, s: ShaderSettings): TokenLoss {
  const plain = -t.advantage * Math.exp(t.d);
  const extra = t.a > 0.5 ? s.beta : 0;
  return {
    value: plain + extra * Math.abs(t.d),
    slope: plain + extra * Math.sign(t.d),
    metrics: [0, Math.abs(t.d), 0],
  };
}

function geoMean(t: Token, s: ShaderSettings): TokenLoss {
  const flows = (t.advantage > 0 && t.d <= s.high) || (t.advantage < 0 && t.d >= s.low);
  const outside = t.d < s.low || t.d > s.high;
  return {
    value: t.a,
    slope: flows ? t.b : 0,
    metrics: [count(outside && t.advantage > 0), -t.d, count(outside && t.advantage < 0)],
  };
}

function cispo(t: Token, s: ShaderSettings): TokenLoss {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const fixed = clamp(r, s.low, s.high);
  const slope = -fixed * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [count(r !== fixed), -d, 0] };
}

function dppo(t: Token, s: ShaderSettings, keep: boolean): TokenLoss {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const slope = keep ? -t.advantage * Math.min(r, s.cap) : 0;
  return { value: slope * t.logprob, slope, metrics: [count(!keep), -d, count(r > s.cap && keep)] };
}

function dppoTv(t: Token, s: ShaderSettings): TokenLoss {
  const change = Math.exp(t.logprob) - Math.exp(t.logprob - t.d);
  return dppo(t, s, t.advantage > 0 ? change <= s.high : change >= -s.low);
}

function dppoKl(t: Token, s: ShaderSettings): TokenLoss {
  const p = Math.exp(t.logprob);
  const old = Math.exp(t.logprob - t.d);
  const kl = -old * t.d + (1 - old) * Math.log((1 - old + 1e-8) / (1 - p + 1e-8));
  return dppo(t, s, t.advantage > 0 ? kl <= s.high || p <= old : kl <= s.low || p >= old);
}

export function dro(t: Token, s: ShaderSettings): TokenLoss {
  return {
    value: -(t.logprob * t.advantage - 0.5 * s.beta * t.d * t.d),
    slope: -t.advantage + s.beta * t.d,
    metrics: [0, -t.d, 0],
  };
}

/** verl passes one actor config to every loss, so each accepts all of it and reads its own part. */
const VERL_SETTINGS: LossSettings = {
  clip_ratio: 0.2,
  clip_ratio_low: 0.2,
  clip_ratio_high: 0.2,
  clip_ratio_c: 3,
  tau_pos: 1,
  tau_neg: 1.05,
  clip_cov_ratio: 2e-4,
  clip_cov_lb: 1,
  clip_cov_ub: 5,
  kl_cov_ratio: 2e-4,
  ppo_kl_coef: 0.1,
  dro_beta: 0,
  seed: 0,
};

const CLIP_METRICS = ["actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"] as const;
const KL_METRIC = [null, "actor/ppo_kl", null] as const;

/** GSPO and SAPO ignore `loss_agg_mode`. */
const sequenceMean = () => ({ mode: "seq-mean-token-mean", given: {} });

const band = (s: LossSettings) => ({ low: 1 - s.clip_ratio_low!, high: 1 + s.clip_ratio_high! });

const PLANS: Readonly<Record<string, (s: LossSettings) => LossPlan>> = {
  vanilla: (s) => {
    if (!(s.clip_ratio_c! > 1))
      throw new ConfigError(`Cannot clip as clip_ratio_c must be above 1: ${s.clip_ratio_c}.`, {
        path: "clip_ratio_c",
      });
    return { code: 0, settings: { ...band(s), cap: s.clip_ratio_c! }, token: vanilla, metrics: CLIP_METRICS };
  },
  gspo: (s) => ({
    code: 1,
    settings: band(s),
    token: gspo,
    rows: "mean-log-ratio",
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
  sapo: (s) => ({
    code: 2,
    settings: { tau_pos: s.tau_pos!, tau_neg: s.tau_neg! },
    token: sapo,
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
  gpg: () => ({ code: 3, settings: {}, token: gpg, metrics: [null, null, null] }),
  // REINFORCE of verl's bypass mode, where the old log-probs are the sampler's.
  reinforce: () => ({ code: 3, settings: {}, token: gpg, metrics: KL_METRIC }),
  clip_cov: (s) => ({
    code: 4,
    settings: band(s),
    token: clipCov,
    selection: {
      kind: "random-between",
      ratio: s.clip_cov_ratio!,
      lower: s.clip_cov_lb!,
      upper: s.clip_cov_ub!,
      seed: s.seed!,
      ...band(s),
    },
    metrics: ["actor/pg_clipfrac", "actor/ppo_kl", null],
  }),
  kl_cov: (s) => ({
    code: 5,
    settings: { beta: s.ppo_kl_coef! },
    token: klCov,
    selection: { kind: "largest", ratio: s.kl_cov_ratio!, lower: 0, upper: 0, seed: 0, low: 0, high: 0 },
    metrics: KL_METRIC,
  }),
  geo_mean: (s) => ({
    code: 6,
    settings: { low: -s.clip_ratio_low!, high: s.clip_ratio_high! },
    token: geoMean,
    rows: "geometric-mean",
    weightsInRows: "all",
    // The mean over all rows, empty ones as 0.
    aggregation: (rows) => ({
      mode: "seq-mean-token-sum",
      given: { global_batch_size: rows.trained.length },
    }),
    metrics: CLIP_METRICS,
  }),
  cispo: (s) => ({ code: 7, settings: band(s), token: cispo, metrics: CLIP_METRICS }),
  dppo_tv: (s) => ({ code: 8, settings: trust(s), token: dppoTv, metrics: CLIP_METRICS }),
  dppo_kl: (s) => ({ code: 9, settings: trust(s), token: dppoKl, metrics: CLIP_METRICS }),
  dro: (s) => {
    if (!(s.dro_beta! > 0))
      throw new ConfigError(`Cannot take the loss dro as dro_beta must be above 0: ${s.dro_beta}.`, {
        path: "dro_beta",
      });
    return { code: 10, settings: { beta: s.dro_beta! }, token: dro, metrics: KL_METRIC };
  },
};

const trust = (s: LossSettings) => ({
  low: s.clip_ratio_low!,
  high: s.clip_ratio_high!,
  cap: s.clip_ratio_c!,
});

export const VERL_LOSSES: readonly LossDefinition[] = Object.entries(PLANS).map(([name, plan]) => ({
  name,
  settings: VERL_SETTINGS,
  plan,
}));
