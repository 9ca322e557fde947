/**
 * verl's policy losses (0.10 dev, core_algos.py), one function of a token each, in float64.
 *
 * A is the advantage, d = logprob - oldLogprob, r = e^d, s the settings. A slope is the derivative in the log-prob; it is
 * 0 where the published code clips or detaches. Unless stated, d is bounded to [-20, 20], with slope 0 beyond.
 */
import { ConfigError } from "../../errors.ts";
import {
  type Aggregation,
  clamp,
  count,
  type LossDefinition,
  type LossPlan,
  type MetricNames,
  type ShaderSettings,
  type Token,
  type TokenFunction,
  type TokenLoss,
} from "./definition.ts";

const MAX_LOG_RATIO = 20;
/** GSPO bounds the row's log-ratio from above. */
const MAX_SEQUENCE_LOG_RATIO = 10;

const bounded = (d: number) => clamp(d, -MAX_LOG_RATIO, MAX_LOG_RATIO);

/** PPO's max(-A r, -A clip(r)): the two sides, and whether the gradient passes. */
function clippedSides(advantage: number, r: number, { low, high }: ShaderSettings) {
  const plain = -advantage * r;
  const clipped = -advantage * clamp(r, low, high);
  return { plain, clipped, passes: plain > clipped || (r >= low && r <= high) };
}

/**
 * L = max(-A r, -A clip(r, low, high)), at most -A cap where A < 0.
 * @see https://arxiv.org/abs/1707.06347 (PPO), https://arxiv.org/abs/1912.09729 (dual clip),
 * core_algos.compute_policy_loss_vanilla
 */
const vanilla: TokenFunction = (t, s) => {
  const d = bounded(t.d);
  const { plain, clipped, passes } = clippedSides(t.advantage, Math.exp(d), s);
  const worse = Math.max(plain, clipped);
  const ceiling = -t.advantage * s.cap;
  const isCapped = t.advantage < 0 && worse > ceiling;
  return {
    value: isCapped ? ceiling : worse,
    slope: passes && !isCapped && Math.abs(t.d) <= MAX_LOG_RATIO ? plain : 0,
    metrics: [count(clipped > plain), -d, count(isCapped)],
  };
};

/**
 * L = max(-A r, -A clip(r)) with the row's r = e^a, a = min(mean d of the row, 10).
 * @see https://arxiv.org/abs/2507.18071, core_algos.compute_policy_loss_gspo
 */
const gspo: TokenFunction = (t, s) => {
  const r = Math.exp(Math.min(t.a, MAX_SEQUENCE_LOG_RATIO));
  const { plain, clipped, passes } = clippedSides(t.advantage, r, s);
  return {
    value: Math.max(plain, clipped),
    slope: passes && t.a <= MAX_SEQUENCE_LOG_RATIO ? plain : 0,
    metrics: [count(clipped > plain), -t.d, 0],
  };
};

/** L = -A (4 / tau) sigmoid(tau (r - 1)), with a tau for each sign of A: value and slope. */
export function softGate(advantage: number, r: number, s: ShaderSettings): { value: number; slope: number } {
  const tau = advantage > 0 ? s.tau_pos : s.tau_neg;
  const gate = 1 / (1 + Math.exp(-tau * (r - 1)));
  return { value: (-advantage * gate * 4) / tau, slope: -advantage * 4 * gate * (1 - gate) * r };
}

/** {@link softGate}. @see https://arxiv.org/abs/2511.20347, core_algos.compute_policy_loss_sapo */
const sapo: TokenFunction = (t, s) => {
  const d = bounded(t.d);
  const { value, slope } = softGate(t.advantage, Math.exp(d), s);
  return { value, slope: Math.abs(t.d) <= MAX_LOG_RATIO ? slope : 0, metrics: [0, -d, 0] };
};

/** L = -A logprob. @see https://arxiv.org/abs/2504.02546, core_algos.compute_policy_loss_gpg */
const gpg: TokenFunction = (t) => ({
  value: -t.logprob * t.advantage,
  slope: -t.advantage,
  metrics: [0, -t.d, 0],
});

/**
 * PPO's loss without the cap, 0 at the selected tokens (a = 1); d is not bounded.
 * @see https://arxiv.org/abs/2505.22617, core_algos.compute_policy_loss_clip_cov
 */
const clipCov: TokenFunction = (t, s) => {
  const { plain, clipped, passes } = clippedSides(t.advantage, Math.exp(t.d), s);
  const isDropped = t.a > 0.5;
  return {
    value: isDropped ? 0 : Math.max(plain, clipped),
    slope: passes && !isDropped ? plain : 0,
    metrics: [count(isDropped), -t.d, 0],
  };
};

/**
 * L = -A r, plus beta |d| at the selected tokens (a = 1); d is not bounded.
 * @see https://arxiv.org/abs/2505.22617, core_algos.compute_policy_loss_kl_cov
 */
const klCov: TokenFunction = (t, s) => {
  const plain = -t.advantage * Math.exp(t.d);
  const extra = t.a > 0.5 ? s.beta : 0;
  return {
    value: plain + extra * Math.abs(t.d),
    slope: plain + extra * Math.sign(t.d),
    metrics: [0, Math.abs(t.d), 0],
  };
};

/**
 * L = -mean A times the geometric mean of the row's clipped ratios, spread over its tokens: value a, slope b.
 * @see https://arxiv.org/abs/2507.20673, core_algos.compute_policy_loss_geo_mean
 */
const geoMean: TokenFunction = (t, s) => {
  const passes = (t.advantage > 0 && t.d <= s.high) || (t.advantage < 0 && t.d >= s.low);
  const isOutside = t.d < s.low || t.d > s.high;
  return {
    value: t.a,
    slope: passes ? t.b : 0,
    metrics: [count(isOutside && t.advantage > 0), -t.d, count(isOutside && t.advantage < 0)],
  };
};

/**
 * L = -A detach(clip(r)) logprob; the gradient passes everywhere.
 * @see https://arxiv.org/abs/2506.13585, core_algos.compute_policy_loss_cispo
 */
const cispo: TokenFunction = (t, s) => {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const fixed = clamp(r, s.low, s.high);
  const slope = -fixed * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [count(r !== fixed), -d, 0] };
};

/** L = -A detach(min(r, cap)) logprob inside the trust region, 0 outside. */
function dppo(t: Token, { cap }: ShaderSettings, isKept: boolean): TokenLoss {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const slope = isKept ? -t.advantage * Math.min(r, cap) : 0;
  return { value: slope * t.logprob, slope, metrics: [count(!isKept), -d, count(r > cap && isKept)] };
}

/** Trust region p - p_old <= high for A > 0, >= -low otherwise. */
const dppoTv: TokenFunction = (t, s) => {
  const change = Math.exp(t.logprob) - Math.exp(t.logprob - t.d);
  return dppo(t, s, t.advantage > 0 ? change <= s.high : change >= -s.low);
};

/** Trust region by the binary KL of p_old and p, in the direction that the advantage pushes. */
const dppoKl: TokenFunction = (t, s) => {
  const p = Math.exp(t.logprob);
  const old = Math.exp(t.logprob - t.d);
  const kl = -old * t.d + (1 - old) * Math.log((1 - old + 1e-8) / (1 - p + 1e-8));
  return dppo(t, s, t.advantage > 0 ? kl <= s.high || p <= old : kl <= s.low || p >= old);
};

/** L = -(A logprob - beta d^2 / 2); d is not bounded. */
export const dro: TokenFunction = (t, s) => ({
  value: -(t.logprob * t.advantage - 0.5 * s.beta * t.d * t.d),
  slope: -t.advantage + s.beta * t.d,
  metrics: [0, -t.d, 0],
});

/** verl passes one actor configuration to every loss, so each accepts all of it and reads its own part. */
const VERL_SETTINGS = {
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

type VerlSettings = typeof VERL_SETTINGS;

const CLIP_METRICS: MetricNames = ["actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"];
const KL_METRIC: MetricNames = [null, "actor/ppo_kl", null];
const NO_METRICS: MetricNames = [null, null, null];

/** GSPO and SAPO ignore `loss_agg_mode`. */
const sequenceMean: Aggregation = () => ({ mode: "seq-mean-token-mean", given: {} });

/** GMPO: the mean over all rows, empty ones as 0. */
const meanOfAllRows: Aggregation = (step) => ({
  mode: "seq-mean-token-sum",
  given: { global_batch_size: step.count },
});

const band = (s: VerlSettings) => ({ low: 1 - s.clip_ratio_low, high: 1 + s.clip_ratio_high });
const trust = (s: VerlSettings) => ({ low: s.clip_ratio_low, high: s.clip_ratio_high, cap: s.clip_ratio_c });

/** @throws {ConfigError} for a value that is not above the limit */
function above(limit: number, key: keyof VerlSettings, s: VerlSettings): number {
  if (s[key] > limit) return s[key];
  throw new ConfigError(`Cannot take the loss: ${key} must be above ${limit} (${s[key]}).`, { path: key });
}

const PLANS: Readonly<Record<string, (s: VerlSettings) => LossPlan>> = {
  vanilla: (s) => ({
    code: 0,
    settings: { ...band(s), cap: above(1, "clip_ratio_c", s) },
    token: vanilla,
    metrics: CLIP_METRICS,
  }),
  gspo: (s) => ({
    code: 1,
    settings: band(s),
    token: gspo,
    rows: "mean-log-ratio",
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
  sapo: ({ tau_pos, tau_neg }) => ({
    code: 2,
    settings: { tau_pos, tau_neg },
    token: sapo,
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
  gpg: () => ({ code: 3, settings: {}, token: gpg, metrics: NO_METRICS }),
  // REINFORCE of verl's bypass mode, where the old log-probs are the sampler's.
  reinforce: () => ({ code: 3, settings: {}, token: gpg, metrics: KL_METRIC }),
  clip_cov: (s) => ({
    code: 4,
    settings: band(s),
    token: clipCov,
    selection: {
      kind: "random-between",
      ratio: s.clip_cov_ratio,
      lower: s.clip_cov_lb,
      upper: s.clip_cov_ub,
      seed: s.seed,
      ...band(s),
    },
    metrics: ["actor/pg_clipfrac", "actor/ppo_kl", null],
  }),
  kl_cov: (s) => ({
    code: 5,
    settings: { beta: s.ppo_kl_coef },
    token: klCov,
    selection: { kind: "largest", ratio: s.kl_cov_ratio, lower: 0, upper: 0, seed: 0, low: 0, high: 0 },
    metrics: KL_METRIC,
  }),
  geo_mean: (s) => ({
    code: 6,
    settings: { low: -s.clip_ratio_low, high: s.clip_ratio_high },
    token: geoMean,
    rows: "geometric-mean",
    weightsInRows: "all",
    aggregation: meanOfAllRows,
    metrics: CLIP_METRICS,
  }),
  cispo: (s) => ({ code: 7, settings: band(s), token: cispo, metrics: CLIP_METRICS }),
  dppo_tv: (s) => ({ code: 8, settings: trust(s), token: dppoTv, metrics: CLIP_METRICS }),
  dppo_kl: (s) => ({ code: 9, settings: trust(s), token: dppoKl, metrics: CLIP_METRICS }),
  dro: (s) => ({ code: 10, settings: { beta: above(0, "dro_beta", s) }, token: dro, metrics: KL_METRIC }),
};

export const VERL_LOSSES: readonly LossDefinition[] = Object.entries(PLANS).map(([name, plan]) => ({
  name,
  settings: VERL_SETTINGS,
  plan,
}));
