/**
 * TRL's losses (GRPOTrainer and RLOOTrainer, 1.10), one function of a token each, in float64.
 * A is the advantage, d = logprob - oldLogprob, r = e^d; log-ratios are not bounded.
 */
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
import { softGate } from "./verl.ts";

/** L = -min(min(r, delta) A, clip(r, low, high) A) with r = e^logRatio. Metrics: clipped below, -d, clipped above. */
export function surrogate(t: Token, logRatio: number, s: Pick<ShaderSettings, "low" | "high" | "delta">): TokenLoss {
  const raw = Math.exp(logRatio);
  const r = Math.min(raw, s.delta);
  const plain = -t.advantage * r;
  const clipped = -t.advantage * clamp(raw, s.low, s.high);
  const passes = plain > clipped ? raw <= s.delta : raw >= s.low && raw <= s.high;
  return {
    value: Math.max(plain, clipped),
    slope: passes ? -t.advantage * raw : 0,
    metrics: [count(r < s.low && t.advantage < 0), -t.d, count(r > s.high && t.advantage > 0)],
  };
}

const token: TokenFunction = (t, s) => surrogate(t, t.d, s);

/** The ratio of the whole sequence: its log-ratio is a, its slope b. */
const sequence: TokenFunction = (t, s) => ({ ...surrogate(t, t.a, s), slope: t.b });

/** L = -A detach(min(r, high)) logprob. */
const cispo: TokenFunction = (t, s) => {
  const r = Math.exp(t.d);
  const slope = -Math.min(r, s.high) * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [0, -t.d, count(r > s.high && t.advantage > 0)] };
};

/** {@link softGate}. */
const sapo: TokenFunction = (t, s) => ({
  ...softGate(t.advantage, Math.exp(t.d), s),
  metrics: [0, -t.d, 0],
});

/** L = -A phi logprob, with the sequence's log-ratio a and phi = e^(lambda + k a - lambda e^a) detached. */
const vespo: TokenFunction = (t, s) => {
  const [k, lambda] = t.advantage >= 0 ? [s.k_pos, s.lambda_pos] : [s.k_neg, s.lambda_neg];
  const phi = Math.exp(lambda + k * t.a - lambda * Math.exp(t.a));
  const slope = -phi * t.advantage;
  return { value: slope * t.logprob, slope, metrics: [phi, -t.d, 0] };
};

const TRL_SETTINGS = {
  epsilon: 0.2,
  /** -1: the same as `epsilon`. */
  epsilon_high: -1,
  /** 0: no upper bound for negative advantages (TRL's None). */
  delta: 0,
  /** 0 = token, 1 = sequence. */
  importance_sampling_level: 0,
  sapo_temperature_pos: 1,
  sapo_temperature_neg: 1.05,
  vespo_k_pos: 2,
  vespo_lambda_pos: 3,
  vespo_k_neg: 3,
  vespo_lambda_neg: 2,
  /** Needed by `trl.dr_grpo`. 0: the longest row. */
  max_completion_length: 0,
  /** Trained tokens of the generation batch (`trl.dapo`, `cispo`, `vespo`). 0: this batch's. */
  num_items_in_batch: 0,
};

type TrlSettings = typeof TRL_SETTINGS;

const NO_METRICS: MetricNames = [null, null, null];
/** TRL does not cut k3 off. */
const klBound = Number.POSITIVE_INFINITY;

const rowMean: Aggregation = (step) => ({
  mode: "seq-mean-token-mean",
  given: { global_batch_size: step.count },
});

const upper = (s: TrlSettings) => (s.epsilon_high < 0 ? s.epsilon : s.epsilon_high);

const clipped = (s: TrlSettings): LossPlan["settings"] => ({
  low: 1 - s.epsilon,
  high: 1 + upper(s),
  ...(s.delta > 0 && { delta: s.delta }),
});

const regionMean: NonNullable<LossPlan["derived"]> = ([low, , high]) => ({
  "clip_ratio/region_mean": low + high,
});

function clippedPlan(s: TrlSettings, aggregation: Aggregation): LossPlan {
  const bySequence = s.importance_sampling_level === 1;
  return {
    code: bySequence ? 16 : 15,
    settings: clipped(s),
    token: bySequence ? sequence : token,
    rows: bySequence ? "sequence-surrogate" : undefined,
    weightsInRows: bySequence ? "slope" : undefined,
    aggregation,
    metrics: ["clip_ratio/low_mean", null, "clip_ratio/high_mean"],
    derived: regionMean,
    klBound,
  };
}

const allTokens =
  (s: TrlSettings): Aggregation =>
  () => ({
    mode: "token-mean",
    given: s.num_items_in_batch > 0 ? { batch_num_tokens: s.num_items_in_batch } : {},
  });

const PLANS: Readonly<Record<string, (s: TrlSettings) => LossPlan>> = {
  grpo: (s) => clippedPlan(s, rowMean),
  bnpo: (s) => clippedPlan(s, () => ({ mode: "token-mean", given: {} })),
  dr_grpo: (s) =>
    clippedPlan(s, (step) => ({
      mode: "seq-mean-token-sum-norm",
      given: { global_batch_size: step.count, loss_scale_factor: s.max_completion_length || step.longest },
    })),
  dapo: (s) => clippedPlan(s, allTokens(s)),
  // The mean over rows of L n: every row weighs as many tokens as it has.
  luspo: (s) =>
    clippedPlan({ ...s, importance_sampling_level: 1 }, (step) => ({
      mode: "seq-mean-token-sum",
      given: { global_batch_size: step.count },
    })),
  cispo: (s) => ({
    code: 17,
    settings: { high: upper(s) },
    token: cispo,
    aggregation: allTokens(s),
    metrics: [null, null, "cispo_clip_ratio"],
    klBound,
  }),
  sapo: (s) => ({
    code: 18,
    settings: { tau_pos: s.sapo_temperature_pos, tau_neg: s.sapo_temperature_neg },
    token: sapo,
    aggregation: rowMean,
    metrics: NO_METRICS,
    klBound,
  }),
  vespo: (s) => ({
    code: 19,
    settings: {
      k_pos: s.vespo_k_pos,
      lambda_pos: Math.max(s.vespo_lambda_pos, 1e-4),
      k_neg: s.vespo_k_neg,
      lambda_neg: Math.max(s.vespo_lambda_neg, 1e-4),
    },
    token: vespo,
    rows: "vespo",
    weightsInRows: "all",
    aggregation: allTokens(s),
    metrics: NO_METRICS,
    klBound,
  }),
  // RLOOTrainer: the ratio of the whole sequence (a sum, not a mean), averaged over rows.
  rloo: (s) => ({
    ...clippedPlan({ ...s, importance_sampling_level: 1 }, rowMean),
    rows: "sequence-sum-surrogate",
  }),
};

/** TRL's losses as `trl.NAME`. Each brings its own aggregation; `loss_agg_mode` does not act on it. */
export const TRL_LOSSES: readonly LossDefinition[] = Object.entries(PLANS).map(([name, plan]) => ({
  name: `trl.${name}`,
  settings: TRL_SETTINGS,
  plan,
}));
