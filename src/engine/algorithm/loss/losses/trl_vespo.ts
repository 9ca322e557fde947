import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { rowStatistic } from "../row_statistic.ts";
import { clamp } from "../token.ts";
import { allTokens, klBound, TRL_SETTINGS } from "./trl_settings.ts";
import { NO_METRICS } from "./verl_settings.ts";

const LOWEST = Math.log(1e-8);
const HIGHEST = 20;

/** a = the row's log-ratio with its log-weights, every term and their sum bounded. */
const logWeight = rowStatistic({
  name: "vespo",
  params: [],
  numbers({ streams, sum, d, weight }) {
    const ofToken = (t: number) =>
      streams.isWeights ? clamp(Math.log(Math.max(weight(t), 1e-30)), LOWEST, HIGHEST) : 0;
    return {
      a: clamp(
        sum((t) => clamp(d(t), -HIGHEST, HIGHEST) + ofToken(t)),
        LOWEST,
        HIGHEST,
      ),
      b: 0,
    };
  },
  wgsl: /* wgsl */ `
fn row_numbers(row: u32, first: u32, end: u32) -> vec2f {
  var sum = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] == 0u) { continue; }
    let weight = select(0.0, clamp(log(max(is_weight(t), 1e-30)), log(1e-8), 20.0), WEIGHT);
    sum += clamp(log_ratio(t), -20.0, 20.0) + weight;
  }
  return vec2(clamp(sum, log(1e-8), 20.0), 0.0);
}`,
});

const form = lossForm({
  name: "trl.vespo",
  params: ["k_pos", "lambda_pos", "k_neg", "lambda_neg"],
  token(t, p) {
    const [k, lambda] = t.advantage >= 0 ? [p.k_pos, p.lambda_pos] : [p.k_neg, p.lambda_neg];
    const phi = Math.exp(lambda + k * t.a - lambda * Math.exp(t.a));
    const slope = -phi * t.advantage;
    return { value: slope * t.logprob, slope, metrics: [phi, -t.d, 0] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let s = params.settings;
  let up = t.advantage >= 0.0;
  let k = select(s.k_neg, s.k_pos, up);
  let lambda = select(s.lambda_neg, s.lambda_pos, up);
  let phi = exp(lambda + k * t.a - lambda * exp(min(t.a, 80.0)));
  let slope = -phi * t.advantage;
  return TokenLoss(slope * t.logprob, slope, vec3(phi, -t.d, 0.0));
}`,
});

export const trlVespo = policyLossOf({
  name: "trl.vespo",
  describe: "-A phi logprob with phi = e^(lambda + k a - lambda e^a) detached, a = the row's log-ratio",
  sources: ["TRL GRPOTrainer._compute_loss"],
  loss_agg_mode: "token-mean",
  settings: TRL_SETTINGS,
  plan: (s) => ({
    form,
    params: {
      k_pos: s.vespo_k_pos,
      lambda_pos: Math.max(s.vespo_lambda_pos, 1e-4),
      k_neg: s.vespo_k_neg,
      lambda_neg: Math.max(s.vespo_lambda_neg, 1e-4),
    },
    rows: logWeight,
    weightsInRows: "all",
    aggregation: allTokens(s),
    metrics: NO_METRICS,
    klBound,
  }),
});
