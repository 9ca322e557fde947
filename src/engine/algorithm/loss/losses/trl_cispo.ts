import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { indicator } from "../token.ts";
import { allTokens, klBound, TRL_SETTINGS, upperDistance } from "./trl_settings.ts";

const form = lossForm({
  name: "trl.cispo",
  params: ["high"],
  token(t, p) {
    const r = Math.exp(t.d);
    const slope = -Math.min(r, p.high) * t.advantage;
    return { value: slope * t.logprob, slope, metrics: [0, -t.d, indicator(r > p.high && t.advantage > 0)] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let high = params.settings.high;
  let r = exp(t.d);
  let slope = -min(r, high) * t.advantage;
  return TokenLoss(slope * t.logprob, slope, vec3(0.0, -t.d, count(r > high && t.advantage > 0.0)));
}`,
});

export const trlCispo = policyLossOf({
  name: "trl.cispo",
  describe: "-A detach(min(r, epsilon_high)) logprob; the mean over all tokens of the generation batch",
  sources: ["https://arxiv.org/abs/2506.13585", "TRL GRPOTrainer._compute_loss"],
  loss_agg_mode: "token-mean",
  settings: TRL_SETTINGS,
  plan: (s) => ({
    form,
    params: { high: upperDistance(s) },
    aggregation: allTokens(s),
    metrics: [null, null, "cispo_clip_ratio"],
    klBound,
  }),
});
