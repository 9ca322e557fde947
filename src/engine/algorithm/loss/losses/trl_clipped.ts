/** TRL's losses on the clipped surrogate. They differ in their aggregation and in whether a token or its row has the ratio. */
import type { AggregationMode } from "../aggregation.ts";
import { type Aggregation, type LossDefinition, type LossPlan, policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { type RowNumbers, rowStatistic, type TrainedRow } from "../row_statistic.ts";
import { NO_DELTA, SURROGATE, SURROGATE_PARAMS, type SurrogateParams, surrogate } from "./surrogate.ts";
import { allTokens, klBound, rowMean, TRL_SETTINGS, type TrlSettings, upperDistance } from "./trl_settings.ts";

const byToken = lossForm({
  name: "trl.token",
  params: SURROGATE_PARAMS,
  token: (t, p) => surrogate(t, t.d, p),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  return surrogate(t, t.d);
}
${SURROGATE}`,
});

/** The ratio of the whole sequence: its log-ratio is a, its slope b. */
const bySequence = lossForm({
  name: "trl.sequence",
  params: SURROGATE_PARAMS,
  token: (t, p) => ({ ...surrogate(t, t.a, p), slope: t.b }),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let loss = surrogate(t, t.a);
  return TokenLoss(loss.value, t.b, loss.metrics);
}
${SURROGATE}`,
});

/** The row's log-ratio a = sum d / divisor, and the slope b of its surrogate at each token, since every token moves the ratio. */
function sequenceNumbers(
  { row, streams, sum, d, weight }: TrainedRow,
  p: SurrogateParams,
  divisor: number,
): RowNumbers {
  const a = sum(d) / divisor;
  const slope = (t: number) => {
    const token = { logprob: 0, d: 0, advantage: streams.advantage(t, row), a, b: 0 };
    return weight(t) * surrogate(token, a, p).slope;
  };
  return { a, b: sum(slope) / divisor };
}

/** `divisor`: an expression of `n`, the row's trained tokens. */
const sequenceRows = (divisor: string) => /* wgsl */ `
fn surrogate_slope(log_ratio: f32, a: f32) -> f32 {
  let s = params.settings;
  let raw = exp(log_ratio);
  let plain = -a * min(raw, s.delta);
  let clipped = -a * clamp(raw, s.low, s.high);
  let flows = select(raw >= s.low && raw <= s.high, raw <= s.delta, plain > clipped);
  return select(0.0, -a * raw, flows);
}

fn row_numbers(row: u32, first: u32, end: u32) -> vec2f {
  var n = 0.0;
  var sum = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] == 0u) { continue; }
    n += 1.0;
    sum += log_ratio(t);
  }
  let divisor = ${divisor};
  let a = sum / divisor;
  var b = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] != 0u) { b += is_weight(t) * surrogate_slope(a, advantage(row, t)); }
  }
  return vec2(a, b / divisor);
}`;

const meanSurrogate = rowStatistic({
  name: "sequence-surrogate",
  params: SURROGATE_PARAMS,
  numbers: (row, p) => sequenceNumbers(row, p, Math.max(row.n, 1)),
  wgsl: sequenceRows("max(n, 1.0)"),
});

const sumSurrogate = rowStatistic({
  name: "sequence-sum-surrogate",
  params: SURROGATE_PARAMS,
  numbers: (row, p) => sequenceNumbers(row, p, 1),
  wgsl: sequenceRows("1.0"),
});

const regionMean: NonNullable<LossPlan["derived"]> = ([low, , high]) => ({
  "clip_ratio/region_mean": low + high,
});

function clipped(s: TrlSettings, aggregation: Aggregation): LossPlan {
  const isBySequence = s.importance_sampling_level === 1;
  return {
    form: isBySequence ? bySequence : byToken,
    params: { low: 1 - s.epsilon, high: 1 + upperDistance(s), delta: s.delta > 0 ? s.delta : NO_DELTA },
    ...(isBySequence && { rows: meanSurrogate, weightsInRows: "slope" as const }),
    aggregation,
    metrics: ["clip_ratio/low_mean", null, "clip_ratio/high_mean"],
    derived: regionMean,
    klBound,
  };
}

/** A clipped loss by its mode and the normalisers that it brings. */
function trlLoss(
  { name, mode, describe }: { name: string; mode: AggregationMode; describe: string },
  plan: (s: TrlSettings) => LossPlan,
): LossDefinition {
  const sources = ["TRL GRPOTrainer._compute_loss"];
  return policyLossOf({ name, describe, sources, loss_agg_mode: mode, settings: TRL_SETTINGS, plan });
}

export const trlGrpo = trlLoss(
  { name: "trl.grpo", mode: "seq-mean-token-mean", describe: "clipped; the mean of each row, then over rows" },
  (s) => clipped(s, rowMean),
);

export const trlBnpo = trlLoss(
  { name: "trl.bnpo", mode: "token-mean", describe: "clipped; the mean over all tokens of the batch" },
  (s) => clipped(s, () => ({ mode: "token-mean", given: {} })),
);

export const trlDrGrpo = trlLoss(
  {
    ...{ name: "trl.dr_grpo", mode: "seq-mean-token-sum-norm" },
    describe: "clipped; the sum of each row over max_completion_length",
  },
  (s) =>
    clipped(s, (step) => ({
      mode: "seq-mean-token-sum-norm",
      given: { global_batch_size: step.count, loss_scale_factor: s.max_completion_length || step.longest },
    })),
);

export const trlDapo = trlLoss(
  { name: "trl.dapo", mode: "token-mean", describe: "clipped; the mean over all tokens of the generation batch" },
  (s) => clipped(s, allTokens(s)),
);

/** The mean over rows of L n: every row weighs as many tokens as it has. */
export const trlLuspo = trlLoss(
  {
    ...{ name: "trl.luspo", mode: "seq-mean-token-sum" },
    describe: "the row's ratio, clipped; the mean over rows of the row's loss times its length",
  },
  (s) =>
    clipped({ ...s, importance_sampling_level: 1 }, (step) => ({
      mode: "seq-mean-token-sum",
      given: { global_batch_size: step.count },
    })),
);

/** The ratio of the whole sequence is a product, not a mean. */
export const trlRloo: LossDefinition = {
  ...trlLoss(
    {
      ...{ name: "trl.rloo", mode: "seq-mean-token-mean" },
      describe: "the ratio of the whole sequence, clipped, averaged over rows",
    },
    (s) => ({ ...clipped({ ...s, importance_sampling_level: 1 }, rowMean), rows: sumSurrogate }),
  ),
  sources: ["TRL RLOOTrainer._compute_loss"],
};
