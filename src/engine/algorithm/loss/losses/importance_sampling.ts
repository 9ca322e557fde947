import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { OFF_POLICY, TINKER_LOSSES_PAGE, underBothNames } from "./tinker_settings.ts";
import { KL_METRIC } from "./verl_settings.ts";

const form = lossForm({
  name: "importance_sampling",
  params: [],
  token(t) {
    const plain = -t.advantage * Math.exp(t.d);
    return { value: plain, slope: plain, metrics: [0, -t.d, 0] };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let plain = -t.advantage * exp(t.d);
  return TokenLoss(plain, plain, vec3(0.0, -t.d, 0.0));
}`,
});

export const [tinkerImportanceSampling, importanceSampling] = underBothNames(
  policyLossOf({
    name: "tinker.importance_sampling",
    describe: "-A r",
    sources: [TINKER_LOSSES_PAGE],
    elsewhere: { tinker: { name: "importance_sampling", needs: OFF_POLICY, may: [], isLinear: true } },
    settings: {},
    plan: () => ({ form, params: {}, metrics: KL_METRIC }),
  }),
);
