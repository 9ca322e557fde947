import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { KL_METRIC, NO_METRICS, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "gpg",
  params: [],
  token: (t) => ({ value: -t.logprob * t.advantage, slope: -t.advantage, metrics: [0, -t.d, 0] }),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  return TokenLoss(-t.logprob * t.advantage, -t.advantage, vec3(0.0, -t.d, 0.0));
}`,
});

export const gpg = policyLossOf({
  name: "gpg",
  describe: "-A logprob",
  sources: ["https://arxiv.org/abs/2504.02546", "verl core_algos.compute_policy_loss_gpg"],
  elsewhere: { verl: { name: "gpg" } },
  settings: VERL_SETTINGS,
  plan: () => ({ form, params: {}, metrics: NO_METRICS }),
});

/** The old log-probs are the sampler's there. */
export const reinforce = policyLossOf({
  name: "reinforce",
  describe: "-A logprob: REINFORCE of verl's bypass mode",
  sources: ["verl core_algos, bypass_mode with loss_type=reinforce"],
  settings: VERL_SETTINGS,
  plan: () => ({ form, params: {}, metrics: KL_METRIC }),
});
