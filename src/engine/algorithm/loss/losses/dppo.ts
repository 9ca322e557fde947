/** -A detach(min(r, cap)) logprob inside a trust region, 0 outside; the two losses differ in what the region bounds. */
import { policyLossOf } from "../definition.ts";
import { lossForm } from "../form.ts";
import { indicator, type Token, type TokenLoss } from "../token.ts";
import { bounded } from "./clipped_ratio.ts";
import { CLIP_METRICS, VERL_SETTINGS, type VerlSettings } from "./verl_settings.ts";

function inRegion(t: Token, cap: number, isKept: boolean): TokenLoss {
  const d = bounded(t.d);
  const r = Math.exp(d);
  const slope = isKept ? -t.advantage * Math.min(r, cap) : 0;
  return { value: slope * t.logprob, slope, metrics: [indicator(!isKept), -d, indicator(r > cap && isKept)] };
}

const IN_REGION = /* wgsl */ `
fn in_region(t: Token, keep: bool) -> TokenLoss {
  let d = bounded(t.d);
  let r = exp(d);
  let slope = select(0.0, -t.advantage * min(r, params.settings.cap), keep);
  return TokenLoss(
    slope * t.logprob,
    slope,
    vec3(count(!keep), -d, count(r > params.settings.cap && keep)),
  );
}`;

const tv = lossForm({
  name: "dppo_tv",
  params: ["low", "high", "cap"],
  token(t, p) {
    const change = Math.exp(t.logprob) - Math.exp(t.logprob - t.d);
    return inRegion(t, p.cap, t.advantage > 0 ? change <= p.high : change >= -p.low);
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let change = exp(t.logprob) - exp(t.logprob - t.d);
  return in_region(t, select(change >= -params.settings.low, change <= params.settings.high, t.advantage > 0.0));
}
${IN_REGION}`,
});

const kl = lossForm({
  name: "dppo_kl",
  params: ["low", "high", "cap"],
  token(t, p) {
    const now = Math.exp(t.logprob);
    const old = Math.exp(t.logprob - t.d);
    const divergence = -old * t.d + (1 - old) * Math.log((1 - old + 1e-8) / (1 - now + 1e-8));
    const isKept = t.advantage > 0 ? divergence <= p.high || now <= old : divergence <= p.low || now >= old;
    return inRegion(t, p.cap, isKept);
  },
  wgsl: /* wgsl */ `
fn token_loss(t: Token) -> TokenLoss {
  let p = exp(t.logprob);
  let p_old = exp(t.logprob - t.d);
  let kl = -p_old * t.d + (1.0 - p_old) * log((1.0 - p_old + 1e-8) / (1.0 - p + 1e-8));
  let up = kl <= params.settings.high || p <= p_old;
  let down = kl <= params.settings.low || p >= p_old;
  return in_region(t, select(down, up, t.advantage > 0.0));
}
${IN_REGION}`,
});

const trust = (s: VerlSettings) => ({ low: s.clip_ratio_low, high: s.clip_ratio_high, cap: s.clip_ratio_c });

export const dppoTv = policyLossOf({
  name: "dppo_tv",
  describe: "-A detach(min(r, clip_ratio_c)) logprob where p - p_old stays within the trust region",
  sources: ["verl core_algos, dppo_tv"],
  elsewhere: { verl: { name: "dppo_tv" } },
  settings: VERL_SETTINGS,
  plan: (s) => ({ form: tv, params: trust(s), metrics: CLIP_METRICS }),
});

export const dppoKl = policyLossOf({
  name: "dppo_kl",
  describe: "-A detach(min(r, clip_ratio_c)) logprob where the binary KL of p_old and p stays within the trust region",
  sources: ["verl core_algos, dppo_kl"],
  elsewhere: { verl: { name: "dppo_kl" } },
  settings: VERL_SETTINGS,
  plan: (s) => ({ form: kl, params: trust(s), metrics: CLIP_METRICS }),
});
