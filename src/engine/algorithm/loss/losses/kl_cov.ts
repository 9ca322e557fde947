import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { KL_METRIC, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "kl_cov",
  params: ["beta"],
  token(t, p) {
    const plain = -t.advantage * Math.exp(t.d);
    const extra = t.a > 0.5 ? p.beta : 0;
    return {
      value: plain + extra * Math.abs(t.d),
      slope: plain + extra * Math.sign(t.d),
      metrics: [0, Math.abs(t.d), 0],
    };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let plain = -t.advantage * exp(t.d);
  let extra = select(0.0, params.settings.beta, t.a > 0.5);
  return TokenLoss(plain + extra * abs(t.d), plain + extra * sign(t.d), vec3(0.0, abs(t.d), 0.0));
}`,
});

export const klCov = policyLossOf({
  name: "kl_cov",
  describe: "-A r, plus ppo_kl_coef |d| at the tokens of highest covariance; log-ratios are not bounded",
  sources: ["https://arxiv.org/abs/2505.22617", "verl core_algos.compute_policy_loss_kl_cov"],
  elsewhere: { verl: { name: "kl_cov" } },
  settings: VERL_SETTINGS,
  plan: (s) => ({
    form,
    params: { beta: s.ppo_kl_coef },
    selection: { kind: "largest", ratio: s.kl_cov_ratio, lower: 0, upper: 0, seed: 0, low: 0, high: 0 },
    metrics: KL_METRIC,
  }),
});
