import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { OFF_POLICY } from "./tinker_settings.ts";
import { above, KL_METRIC, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "dro",
  params: ["beta"],
  token: (t, { beta }) => ({
    value: -(t.logprob * t.advantage - 0.5 * beta * t.d * t.d),
    slope: -t.advantage + beta * t.d,
    metrics: [0, -t.d, 0],
  }),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let beta = params.settings.beta;
  return TokenLoss(
    -(t.logprob * t.advantage - 0.5 * beta * t.d * t.d),
    -t.advantage + beta * t.d,
    vec3(0.0, -t.d, 0.0),
  );
}`,
});

export const dro = policyLossOf({
  name: "dro",
  describe: "-(A logprob - dro_beta d^2 / 2); log-ratios are not bounded",
  sources: ["https://arxiv.org/abs/2405.19107", "verl core_algos.compute_policy_loss_dro"],
  elsewhere: { verl: { name: "dro", since: "0.9.0" } },
  settings: VERL_SETTINGS,
  plan: (s) => ({ form, params: { beta: above(0, "dro_beta", s) }, metrics: KL_METRIC }),
});

export const tinkerDro = policyLossOf({
  name: "tinker.dro",
  describe: "dro with Tinker's setting beta",
  sources: ["https://tinker-docs.thinkingmachines.ai/losses"],
  elsewhere: { tinker: { name: "dro", needs: OFF_POLICY, may: [], isLinear: false } },
  settings: { beta: 0.05 },
  plan: ({ beta }) => ({ form, params: { beta }, metrics: KL_METRIC }),
});
