import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { SOFT_GATE, softGate } from "./soft_gate.ts";
import { klBound, rowMean, TRL_SETTINGS } from "./trl_settings.ts";
import { NO_METRICS } from "./verl_settings.ts";

const form = lossForm({
  name: "trl.sapo",
  params: ["tau_pos", "tau_neg"],
  token: (t, p) => ({ ...softGate(t.advantage, Math.exp(t.d), p), metrics: [0, -t.d, 0] }),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let soft = soft_gate(t.advantage, exp(t.d));
  return TokenLoss(soft.x, soft.y, vec3(0.0, -t.d, 0.0));
}
${SOFT_GATE}`,
});

export const trlSapo = policyLossOf({
  name: "trl.sapo",
  describe: "-A (4 / tau) sigmoid(tau (r - 1)); the mean of each row, then over rows",
  sources: ["https://arxiv.org/abs/2511.20347", "TRL GRPOTrainer._compute_loss"],
  loss_agg_mode: "seq-mean-token-mean",
  settings: TRL_SETTINGS,
  plan: (s) => ({
    form,
    params: { tau_pos: s.sapo_temperature_pos, tau_neg: s.sapo_temperature_neg },
    aggregation: rowMean,
    metrics: NO_METRICS,
    klBound,
  }),
});
