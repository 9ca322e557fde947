import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { indicator } from "../token.ts";
import { CLIPPED_RATIO, clippedRatio } from "./clipped_ratio.ts";
import { meanLogRatio } from "./mean_log_ratio.ts";
import { band, CLIP_METRICS, sequenceMean, VERL_SETTINGS } from "./verl_settings.ts";

/** The row's log-ratio is bounded from above. */
const MAX_SEQUENCE_LOG_RATIO = 10;

const form = lossForm({
  name: "gspo",
  params: ["low", "high"],
  token(t, p) {
    const r = Math.exp(Math.min(t.a, MAX_SEQUENCE_LOG_RATIO));
    const { plain, clipped, passes } = clippedRatio(t.advantage, r, p);
    return {
      value: Math.max(plain, clipped),
      slope: passes && t.a <= MAX_SEQUENCE_LOG_RATIO ? plain : 0,
      metrics: [indicator(clipped > plain), -t.d, 0],
    };
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let sides = clipped_ratio(t.advantage, exp(min(t.a, 10.0)));
  let flows = sides.passes && t.a <= 10.0;
  return TokenLoss(
    max(sides.plain, sides.clipped),
    select(0.0, sides.plain, flows),
    vec3(count(sides.clipped > sides.plain), -t.d, 0.0),
  );
}
${CLIPPED_RATIO}`,
});

export const gspo = policyLossOf({
  name: "gspo",
  describe: "max(-A r, -A clip(r)) with the row's r = e^a, a = min(mean d of the row, 10)",
  sources: ["https://arxiv.org/abs/2507.18071", "verl core_algos.compute_policy_loss_gspo"],
  elsewhere: { verl: { name: "gspo" }, trinity: "gspo" },
  loss_agg_mode: "seq-mean-token-mean",
  settings: VERL_SETTINGS,
  plan: (s) => ({
    form,
    params: band(s),
    rows: meanLogRatio,
    aggregation: sequenceMean,
    metrics: CLIP_METRICS,
  }),
});
