import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { indicator } from "../token.ts";
import { bounded, CLIPPED_RATIO, clippedRatio, MAX_LOG_RATIO } from "./clipped_ratio.ts";
import { above, band, CLIP_METRICS, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "vanilla",
  params: ["low", "high", "cap"],
  token(t, p) {
    const d = bounded(t.d);
    const { plain, clipped, passes } = clippedRatio(t.advantage, Math.exp(d), p);
    const worse = Math.max(plain, clipped);
    const ceiling = -t.advantage * p.cap;
    const isCapped = t.advantage < 0 && worse > ceiling;
    return {
      value: isCapped ? ceiling : worse,
      slope: passes && !isCapped && Math.abs(t.d) <= MAX_LOG_RATIO ? plain : 0,
      metrics: [indicator(clipped > plain), -d, indicator(isCapped)],
    };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let d = bounded(t.d);
  let sides = clipped_ratio(t.advantage, exp(d));
  let worse = max(sides.plain, sides.clipped);
  let ceiling = -t.advantage * params.settings.cap;
  let capped = t.advantage < 0.0 && worse > ceiling;
  let flows = sides.passes && !capped && abs(t.d) <= MAX_LOG_RATIO;
  return TokenLoss(
    select(worse, ceiling, capped),
    select(0.0, sides.plain, flows),
    vec3(count(sides.clipped > sides.plain), -d, count(capped)),
  );
}
${CLIPPED_RATIO}`,
});

export const vanilla = policyLossOf({
  name: "vanilla",
  describe: "PPO: max(-A r, -A clip(r)), at most -A clip_ratio_c where A < 0; log-ratios are bounded to 20",
  sources: [
    "https://arxiv.org/abs/1707.06347 (PPO)",
    "https://arxiv.org/abs/1912.09729 (dual clip)",
    "verl core_algos.compute_policy_loss_vanilla",
  ],
  elsewhere: { verl: { name: "vanilla" }, trinity: "ppo" },
  settings: VERL_SETTINGS,
  plan: (s) => ({ form, params: { ...band(s), cap: above(1, "clip_ratio_c", s) }, metrics: CLIP_METRICS }),
});
