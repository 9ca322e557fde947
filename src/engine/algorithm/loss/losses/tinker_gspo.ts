import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { meanLogRatio } from "./mean_log_ratio.ts";
import { NO_DELTA, SURROGATE, SURROGATE_PARAMS, surrogate } from "./surrogate.ts";
import {
  clippedEitherSide,
  OFF_POLICY,
  SIDES_METRICS,
  THRESHOLDS,
  TINKER_LOSSES_PAGE,
  thresholds,
} from "./tinker_settings.ts";

const form = lossForm({
  name: "tinker.gspo",
  params: SURROGATE_PARAMS,
  token: (t, p) => surrogate(t, t.a, p),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  return surrogate(t, t.a);
}
${SURROGATE}`,
});

/**
 * Tinker's GSPO, without a bound of the row's ratio; the default thresholds are those of GSPO's paper: 1 - 3e-4 and 1 +
 * 4e-4.
 */
export const tinkerGspo = policyLossOf({
  name: "tinker.gspo",
  describe: "max(-A s, -A clip(s)) with the row's s = e^(mean d); the slope is that of the token's own log-prob",
  sources: ["https://arxiv.org/abs/2507.18071", TINKER_LOSSES_PAGE],
  elsewhere: {
    tinker: { name: "gspo", needs: [...OFF_POLICY, "sequence_ratio_mask"], may: THRESHOLDS, isLinear: true },
  },
  settings: { clip_low_threshold: 0.9997, clip_high_threshold: 1.0004 },
  plan: (s) => ({
    form,
    params: { ...thresholds(s), delta: NO_DELTA },
    rows: meanLogRatio,
    metrics: SIDES_METRICS,
    derived: clippedEitherSide,
  }),
});
