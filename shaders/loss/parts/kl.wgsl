// What KL estimates of one token stand on, x = logprob - ref. The function kl_estimate is written from their list
// (src/engine/algorithm/kl/estimate.ts).

const MAX_LOG_RATIO = 20.0;

// The code of the estimate; 0 is none.
override KL: u32 = 0u;

fn k3_estimate(x: f32, bound: f32) -> vec2f {
  let k = clamp(-x, -MAX_LOG_RATIO, MAX_LOG_RATIO);
  let v = expm1_small(k) - k;
  let flows = v <= bound && abs(x) <= MAX_LOG_RATIO;
  return vec2(min(v, bound), select(0.0, -expm1_small(k), flows));
}

// e^k - 1 without cancellation near 0, where most tokens are.
fn expm1_small(k: f32) -> f32 {
  let series = k * (1.0 + k * (0.5 + k * (1.0 / 6.0 + k * (1.0 / 24.0 + k * (1.0 / 120.0)))));
  return select(exp(k) - 1.0, series, abs(k) < 0.1);
}
