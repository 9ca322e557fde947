import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { clamp, indicator } from "../token.ts";
import { OFF_POLICY, THRESHOLDS, TINKER_LOSSES_PAGE, thresholds } from "./tinker_settings.ts";

const form = lossForm({
  name: "tinker.cispo",
  params: ["low", "high"],
  token(t, p) {
    const r = Math.exp(t.d);
    const fixed = clamp(r, p.low, p.high);
    const slope = -fixed * t.advantage;
    return { value: slope * t.logprob, slope, metrics: [indicator(r !== fixed), -t.d, 0] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let r = exp(t.d);
  let fixed = clamp(r, params.settings.low, params.settings.high);
  let slope = -fixed * t.advantage;
  return TokenLoss(slope * t.logprob, slope, vec3(count(r != fixed), -t.d, 0.0));
}`,
});

export const tinkerCispo = policyLossOf({
  name: "tinker.cispo",
  describe: "-A detach(clip(r)) logprob, with thresholds as ratios and without a bound of the log-ratio",
  sources: ["https://arxiv.org/abs/2506.13585", TINKER_LOSSES_PAGE],
  elsewhere: { tinker: { name: "cispo", needs: OFF_POLICY, may: THRESHOLDS, isLinear: true } },
  settings: { clip_low_threshold: 0, clip_high_threshold: 4 },
  plan: (s) => ({ form, params: thresholds(s), metrics: ["actor/pg_clipfrac", "actor/ppo_kl", null] }),
});
