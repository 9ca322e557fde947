import type { PreferenceLoss } from "../definition.ts";
import { LABEL_SMOOTHING, ON_LOG_RATIOS } from "./dpo_settings.ts";
import { sigmoidForm } from "./sigmoid_form.ts";

export const sigmoid: PreferenceLoss = {
  ...ON_LOG_RATIOS,
  name: "sigmoid",
  describe: "-(1 - e) log s(beta d) - e log s(-beta d), e = `label_smoothing`; DPO, with e cDPO",
  sources: ["https://arxiv.org/abs/2305.18290", "TRL DPOTrainer"],
  settings: { beta: 0.1, label_smoothing: 0, rpo_alpha: 0 },
  describeSettings: { label_smoothing: LABEL_SMOOTHING, ...ON_LOG_RATIOS.describeSettings },
  form: sigmoidForm,
  params: (s) => ({ beta: s.beta!, smoothing: s.label_smoothing!, gamma: 0 }),
};
