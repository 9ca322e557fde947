import { COUNT_EPSILON } from "../../rows.ts";
import { type Aggregation, policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { rowStatistic } from "../row_statistic.ts";
import { clamp, indicator } from "../token.ts";
import { CLIP_METRICS, VERL_SETTINGS } from "./verl_settings.ts";

/** a = loss of the row / n, b = its slope at a token: geometric mean of pessimistically clipped ratios, times mean A and mean weight. */
const geometricMean = rowStatistic({
  name: "geometric-mean",
  params: ["low", "high"],
  numbers({ row, streams, n, sum, d, weight }, { low, high }) {
    const length = n + COUNT_EPSILON;
    const advantage = (t: number) => streams.advantage(t, row);
    const pessimistic = (t: number) => {
      const side = Math.sign(advantage(t));
      return side * Math.min(side * d(t), side * clamp(d(t), low, high));
    };
    const ratio = Math.exp(sum(pessimistic) / length);
    const meanWeight = streams.isWeights ? Math.exp(sum((t) => Math.log(weight(t) + 1e-10)) / length) : 1;
    const loss = -(sum(advantage) / length) * ratio * meanWeight;
    return { a: loss / Math.max(n, 1), b: loss / length };
  },
  wgsl: /* wgsl */ `
fn row_numbers(row: u32, first: u32, end: u32) -> vec2f {
  let s = params.settings;
  var n = 0.0;
  var sum = 0.0;
  var sum_advantage = 0.0;
  var sum_log_weight = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] == 0u) { continue; }
    n += 1.0;
    let d = log_ratio(t);
    let side = sign(advantage(row, t));
    sum += side * min(side * d, side * clamp(d, s.low, s.high));
    sum_advantage += advantage(row, t);
    sum_log_weight += select(0.0, log(is_weight(t) + 1e-10), WEIGHT);
  }
  let length = max(n, 1.0);
  let loss = -sum_advantage / length * exp(sum / length) * exp(sum_log_weight / length);
  return vec2(loss / length);
}`,
});

const form = lossForm({
  name: "geo_mean",
  params: ["low", "high"],
  token(t, p) {
    const passes = (t.advantage > 0 && t.d <= p.high) || (t.advantage < 0 && t.d >= p.low);
    const isOutside = t.d < p.low || t.d > p.high;
    return {
      value: t.a,
      slope: passes ? t.b : 0,
      metrics: [indicator(isOutside && t.advantage > 0), -t.d, indicator(isOutside && t.advantage < 0)],
    };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let s = params.settings;
  let flows = (t.advantage > 0.0 && t.d <= s.high) || (t.advantage < 0.0 && t.d >= s.low);
  let outside = t.d < s.low || t.d > s.high;
  return TokenLoss(
    t.a,
    select(0.0, t.b, flows),
    vec3(count(outside && t.advantage > 0.0), -t.d, count(outside && t.advantage < 0.0)),
  );
}`,
});

/** The mean over all rows, empty ones as 0. */
const meanOfAllRows: Aggregation = (step) => ({
  mode: "seq-mean-token-sum",
  given: { global_batch_size: step.count },
});

export const geoMean = policyLossOf({
  name: "geo_mean",
  describe: "GMPO: -mean A times the geometric mean of the row's clipped ratios, spread over its tokens",
  sources: ["https://arxiv.org/abs/2507.20673", "verl core_algos.compute_policy_loss_geo_mean"],
  elsewhere: { verl: { name: "geo_mean" } },
  loss_agg_mode: "seq-mean-token-mean",
  settings: VERL_SETTINGS,
  plan: (s) => ({
    form,
    params: { low: -s.clip_ratio_low, high: s.clip_ratio_high },
    rows: geometricMean,
    weightsInRows: "all",
    aggregation: meanOfAllRows,
    metrics: CLIP_METRICS,
  }),
});
