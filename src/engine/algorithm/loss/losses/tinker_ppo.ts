import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { NO_DELTA, SURROGATE, SURROGATE_PARAMS, surrogate } from "./surrogate.ts";
import {
  clippedEitherSide,
  OFF_POLICY,
  SIDES_METRICS,
  THRESHOLDS,
  TINKER_LOSSES_PAGE,
  thresholds,
  underBothNames,
} from "./tinker_settings.ts";

const form = lossForm({
  name: "tinker.ppo",
  params: SURROGATE_PARAMS,
  token: (t, p) => surrogate(t, t.d, p),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  return surrogate(t, t.d);
}
${SURROGATE}`,
});

export const [tinkerPpo, ppo] = underBothNames(
  policyLossOf({
    name: "tinker.ppo",
    describe: "max(-A r, -A clip(r)), with thresholds as ratios",
    sources: ["https://arxiv.org/abs/1707.06347", TINKER_LOSSES_PAGE],
    elsewhere: { tinker: { name: "ppo", needs: OFF_POLICY, may: THRESHOLDS, isLinear: true } },
    settings: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
    plan: (s) => ({
      form,
      params: { ...thresholds(s), delta: NO_DELTA },
      metrics: SIDES_METRICS,
      derived: clippedEitherSide,
    }),
  }),
);
