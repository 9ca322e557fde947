import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { indicator } from "../token.ts";
import { CLIPPED_RATIO, clippedRatio } from "./clipped_ratio.ts";
import { band, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "clip_cov",
  params: ["low", "high"],
  token(t, p) {
    const { plain, clipped, passes } = clippedRatio(t.advantage, Math.exp(t.d), p);
    const isDropped = t.a > 0.5;
    return {
      value: isDropped ? 0 : Math.max(plain, clipped),
      slope: passes && !isDropped ? plain : 0,
      metrics: [indicator(isDropped), -t.d, 0],
    };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let sides = clipped_ratio(t.advantage, exp(t.d));
  let dropped = t.a > 0.5;
  return TokenLoss(
    select(max(sides.plain, sides.clipped), 0.0, dropped),
    select(0.0, sides.plain, sides.passes && !dropped),
    vec3(count(dropped), -t.d, 0.0),
  );
}
${CLIPPED_RATIO}`,
});

export const clipCov = policyLossOf({
  name: "clip_cov",
  describe: "PPO without the cap, 0 at tokens drawn from those of high covariance; log-ratios are not bounded",
  sources: ["https://arxiv.org/abs/2505.22617", "verl core_algos.compute_policy_loss_clip_cov"],
  elsewhere: { verl: { name: "clip_cov" } },
  settings: VERL_SETTINGS,
  plan: (s) => ({
    form,
    params: band(s),
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
});
