import type { PreferenceLoss } from "../definition.ts";
import { preferenceForm } from "../form.ts";
import { ofDifference } from "../pair.ts";
import { betaOnly, DPO_SETTINGS, ON_LOG_RATIOS } from "./dpo_settings.ts";

const form = preferenceForm({
  name: "ipo",
  params: ["beta"],
  pair({ d }, { beta }) {
    const off = d - 1 / (2 * beta);
    return ofDifference(off * off, 2 * off);
  },
  wgsl: /* wgsl */ `
fn pair_loss(s: Scores) -> PairLoss {
  let off = s.d - 0.5 / params.settings.beta;
  return of_difference(off * off, 2.0 * off);
}`,
});

export const ipo: PreferenceLoss = {
  ...ON_LOG_RATIOS,
  name: "ipo",
  describe: "(d - 1 / (2 beta))^2",
  sources: ["https://arxiv.org/abs/2310.12036", "TRL DPOTrainer"],
  isMean: true,
  settings: DPO_SETTINGS,
  form,
  params: betaOnly,
};
