import type { PreferenceLoss } from "../definition.ts";
import { preferenceForm } from "../form.ts";
import { logistic, softplus } from "../logistic.ts";
import { ofDifference } from "../pair.ts";
import { LABEL_SMOOTHING, ON_LOG_RATIOS } from "./dpo_settings.ts";

const form = preferenceForm({
  name: "robust",
  params: ["beta", "smoothing"],
  pair({ d }, { beta, smoothing: e }) {
    const z = beta * d;
    const slope = -e * logistic(z) - (1 - e) * logistic(-z);
    return ofDifference(((1 - e) * softplus(-z) - e * softplus(z)) / (1 - 2 * e), (beta * slope) / (1 - 2 * e));
  },
  wgsl: /* wgsl */ `
fn pair_loss(s: Scores) -> PairLoss {
  let p = params.settings;
  let z = p.beta * s.d;
  let e = p.smoothing;
  let whole = 1.0 - 2.0 * e;
  let slope = -e * logistic(z) - (1.0 - e) * logistic(-z);
  return of_difference(((1.0 - e) * softplus(-z) - e * softplus(z)) / whole, p.beta * slope / whole);
}`,
});

export const robust: PreferenceLoss = {
  ...ON_LOG_RATIOS,
  name: "robust",
  describe:
    "(-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2e), e = `label_smoothing`; unbiased where a share e of the labels is wrong",
  sources: ["https://arxiv.org/abs/2403.00409", "TRL DPOTrainer"],
  settings: { beta: 0.1, label_smoothing: 0, rpo_alpha: 0 },
  describeSettings: { label_smoothing: LABEL_SMOOTHING, ...ON_LOG_RATIOS.describeSettings },
  form,
  params: (s) => ({ beta: s.beta!, smoothing: s.label_smoothing! }),
};
