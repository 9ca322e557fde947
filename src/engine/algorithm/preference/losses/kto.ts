import type { PreferenceLoss } from "../definition.ts";
import { preferenceForm } from "../form.ts";
import { logistic } from "../logistic.ts";

const form = preferenceForm({
  name: "kto",
  params: ["beta", "kl", "desirable", "undesirable"],
  pair({ chosen: score, isDesirable }, { beta, kl, desirable, undesirable }) {
    const side = isDesirable ? 1 : -1;
    const weight = isDesirable ? desirable : undesirable;
    const z = side * beta * (score - kl);
    return { value: weight * logistic(-z), chosen: -side * weight * beta * logistic(z) * logistic(-z), rejected: 0 };
  },
  wgsl: /* wgsl */ `
fn pair_loss(s: Scores) -> PairLoss {
  let p = params.settings;
  let side = select(-1.0, 1.0, s.desirable);
  let weight = select(p.undesirable, p.desirable, s.desirable);
  let z = side * p.beta * (s.chosen - p.kl);
  return PairLoss(weight * logistic(-z), -side * weight * p.beta * logistic(z) * logistic(-z), 0.0);
}`,
});

export const kto: PreferenceLoss = {
  name: "kto",
  describe:
    "w s(-z), z = beta (c - kl) and w = `desirable_weight` where the row is desirable, else z = beta (kl - c) and w = `undesirable_weight`",
  sources: ["https://arxiv.org/abs/2402.01306", "TRL KTOTrainer"],
  settings: { beta: 0.1, desirable_weight: 1, undesirable_weight: 1 },
  describeSettings: { desirable_weight: "weight of desirable rows", undesirable_weight: "weight of undesirable rows" },
  unit: "row",
  hasReference: true,
  isMean: false,
  nllWeight: () => 0,
  form,
  params: (s, kl) => ({ beta: s.beta!, kl, desirable: s.desirable_weight!, undesirable: s.undesirable_weight! }),
};
