import type { PreferenceLoss } from "../definition.ts";
import { LABEL_SMOOTHING } from "./dpo_settings.ts";
import { sigmoidForm } from "./sigmoid_form.ts";

export const simpo: PreferenceLoss = {
  name: "simpo",
  describe: "-log s(beta d - `simpo_gamma`), with `label_smoothing` as in `sigmoid`",
  sources: ["https://arxiv.org/abs/2405.14734", "TRL CPOTrainer"],
  settings: { beta: 0.1, simpo_gamma: 0.5, label_smoothing: 0, cpo_alpha: 0 },
  describeSettings: {
    simpo_gamma: "margin between the two rewards",
    label_smoothing: LABEL_SMOOTHING,
    cpo_alpha: "weight of the likelihood of chosen answers",
  },
  unit: "pair",
  hasReference: false,
  isMean: true,
  nllWeight: ({ cpo_alpha }) => cpo_alpha!,
  form: sigmoidForm,
  params: (s) => ({ beta: s.beta!, smoothing: s.label_smoothing!, gamma: s.simpo_gamma! }),
};
