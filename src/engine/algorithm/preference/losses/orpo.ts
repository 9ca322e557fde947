import type { PreferenceLoss } from "../definition.ts";
import { preferenceForm } from "../form.ts";
import { logistic, softplus } from "../logistic.ts";
import { log1mexp } from "../odds.ts";
import { betaOnly } from "./dpo_settings.ts";

/**
 * The slope in c is -beta s(-o) / (1 - e^c) = -beta s(o) e^(r - c) / (1 - e^r): the second form has a value where the chosen answer is
 * certain.
 */
const form = preferenceForm({
  name: "orpo",
  params: ["beta"],
  pair({ chosen, rejected }, { beta }) {
    const odds = chosen - rejected - (log1mexp(chosen) - log1mexp(rejected));
    const against = beta * logistic(-odds);
    const ahead = (beta * logistic(odds) * Math.exp(rejected - chosen)) / -Math.expm1(rejected);
    return {
      value: beta * softplus(-odds),
      chosen: odds > 0 ? -ahead : against / Math.expm1(chosen),
      rejected: against / -Math.expm1(rejected),
    };
  },
  wgsl: /* wgsl */ `
// The least normal float32.
const LEAST = 1.17549435e-38;

fn pair_loss(s: Scores) -> PairLoss {
  let beta = params.settings.beta;
  let c = -expm1_below(s.chosen);
  let r = -expm1_below(s.rejected);
  let odds = s.chosen - s.rejected - (log(max(c, LEAST)) - log(r));
  let against = beta * logistic(-odds);
  let ahead = beta * logistic(odds) * exp(min(s.rejected - s.chosen, 0.0)) / r;
  let slope = select(against / max(c, LEAST), ahead, odds > 0.0);
  return PairLoss(beta * softplus(-odds), -slope, against / r);
}

// e^x - 1 for x <= 0, without cancellation near 0.
fn expm1_below(x: f32) -> f32 {
  let series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))));
  return select(exp(x) - 1.0, series, x > -0.1);
}`,
});

export const orpo: PreferenceLoss = {
  name: "orpo",
  describe:
    "-beta log s(o), o = log(e^c / (1 - e^c)) - log(e^r / (1 - e^r)), plus the mean negative log-likelihood of the chosen rows",
  sources: ["https://arxiv.org/abs/2403.07691", "TRL ORPOTrainer"],
  settings: { beta: 0.1 },
  describeSettings: {},
  unit: "pair",
  hasReference: false,
  isMean: true,
  hasOdds: true,
  nllWeight: () => 1,
  form,
  params: betaOnly,
};
