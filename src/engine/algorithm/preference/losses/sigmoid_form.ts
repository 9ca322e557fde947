/** The form that DPO and SimPO share: the logistic loss of z = beta d - gamma, where a share e of the labels may be wrong. */
import { preferenceForm } from "../form.ts";
import { logistic, softplus } from "../logistic.ts";
import { ofDifference } from "../pair.ts";

/** -(1 - e) log s(z) - e log s(-z): DPO's, and SimPO's with a margin. */
export const sigmoidForm = preferenceForm({
  name: "sigmoid",
  params: ["beta", "smoothing", "gamma"],
  pair({ d }, { beta, smoothing: e, gamma }) {
    const z = beta * d - gamma;
    const slope = e * logistic(z) - (1 - e) * logistic(-z);
    return ofDifference((1 - e) * softplus(-z) + e * softplus(z), beta * slope);
  },
  wgsl: /* wgsl */ `
fn pair_loss(s: Scores) -> PairLoss {
  let p = params.settings;
  let z = p.beta * s.d - p.gamma;
  let e = p.smoothing;
  let slope = e * logistic(z) - (1.0 - e) * logistic(-z);
  return of_difference((1.0 - e) * softplus(-z) + e * softplus(z), p.beta * slope);
}`,
});
