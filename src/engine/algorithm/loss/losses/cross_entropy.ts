import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { TINKER_LOSSES_PAGE, underBothNames } from "./tinker_settings.ts";

const form = lossForm({
  name: "cross_entropy",
  params: [],
  token: (t) => ({ value: -t.logprob * t.advantage, slope: -t.advantage, metrics: [0, 0, 0] }),
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  return TokenLoss(-t.logprob * t.advantage, -t.advantage, vec3(0.0));
}`,
});

export const [tinkerCrossEntropy, crossEntropy] = underBothNames(
  policyLossOf({
    name: "tinker.cross_entropy",
    describe: "-w logprob, with the weight w in the place of the advantage",
    sources: [TINKER_LOSSES_PAGE],
    elsewhere: { tinker: { name: "cross_entropy", needs: [], may: ["weights"], isLinear: true } },
    settings: {},
    plan: () => ({ form, params: {}, metrics: [null, null, null] }),
  }),
);
