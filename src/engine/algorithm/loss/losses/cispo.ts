import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { clamp, indicator } from "../token.ts";
import { bounded } from "./clipped_ratio.ts";
import { band, CLIP_METRICS, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "cispo",
  params: ["low", "high"],
  token(t, p) {
    const d = bounded(t.d);
    const r = Math.exp(d);
    const fixed = clamp(r, p.low, p.high);
    const slope = -fixed * t.advantage;
    return { value: slope * t.logprob, slope, metrics: [indicator(r !== fixed), -d, 0] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let d = bounded(t.d);
  let r = exp(d);
  let fixed = clamp(r, params.settings.low, params.settings.high);
  let slope = -fixed * t.advantage;
  return TokenLoss(slope * t.logprob, slope, vec3(count(r != fixed), -d, 0.0));
}`,
});

export const cispo = policyLossOf({
  name: "cispo",
  describe: "-A detach(clip(r)) logprob: the gradient passes everywhere",
  sources: ["https://arxiv.org/abs/2506.13585", "verl core_algos.compute_policy_loss_cispo"],
  elsewhere: { verl: { name: "cispo" }, trinity: "cispo" },
  settings: VERL_SETTINGS,
  plan: (s) => ({ form, params: band(s), metrics: CLIP_METRICS }),
});
