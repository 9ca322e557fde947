import type { PreferenceLoss } from "../definition.ts";
import { preferenceForm } from "../form.ts";
import { ofDifference } from "../pair.ts";
import { betaOnly, DPO_SETTINGS, ON_LOG_RATIOS } from "./dpo_settings.ts";

const form = preferenceForm({
  name: "hinge",
  params: ["beta"],
  pair({ d }, { beta }) {
    const missing = 1 - beta * d;
    return missing > 0 ? ofDifference(missing, -beta) : ofDifference(0, 0);
  },
  wgsl: /* wgsl */ `
fn pair_loss(s: Scores) -> PairLoss {
  let beta = params.settings.beta;
  let z = beta * s.d;
  return of_difference(max(1.0 - z, 0.0), select(0.0, -beta, z < 1.0));
}`,
});

export const hinge: PreferenceLoss = {
  ...ON_LOG_RATIOS,
  name: "hinge",
  describe: "max(0, 1 - beta d); SLiC",
  sources: ["https://arxiv.org/abs/2309.06657", "TRL DPOTrainer"],
  settings: DPO_SETTINGS,
  form,
  params: betaOnly,
};
