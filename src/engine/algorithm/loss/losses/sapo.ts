import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { bounded, MAX_LOG_RATIO } from "./clipped_ratio.ts";
import { SOFT_GATE, softGate } from "./soft_gate.ts";
import { CLIP_METRICS, sequenceMean, VERL_SETTINGS } from "./verl_settings.ts";

const form = lossForm({
  name: "sapo",
  params: ["tau_pos", "tau_neg"],
  token(t, p) {
    const d = bounded(t.d);
    const { value, slope } = softGate(t.advantage, Math.exp(d), p);
    return { value, slope: Math.abs(t.d) <= MAX_LOG_RATIO ? slope : 0, metrics: [0, -d, 0] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let d = bounded(t.d);
  let soft = soft_gate(t.advantage, exp(d));
  return TokenLoss(soft.x, select(0.0, soft.y, abs(t.d) <= MAX_LOG_RATIO), vec3(0.0, -d, 0.0));
}
${SOFT_GATE}`,
});

export const sapo = policyLossOf({
  name: "sapo",
  describe: "-A (4 / tau) sigmoid(tau (r - 1)): a soft gate in place of the clip, with a tau for each sign of A",
  sources: ["https://arxiv.org/abs/2511.20347", "verl core_algos.compute_policy_loss_sapo"],
  elsewhere: { verl: { name: "sapo" }, trinity: "sapo" },
  loss_agg_mode: "seq-mean-token-mean",
  settings: VERL_SETTINGS,
  plan: ({ tau_pos, tau_neg }) => ({
    form,
    params: { tau_pos, tau_neg },
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
});
