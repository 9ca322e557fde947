// KL estimates of one token, x = logprob - ref.

const MAX_LOG_RATIO = 20.0;

// Bits 0-2: 1 = k1, 2 = |k1|, 3 = k2, 4 = k3. Bit 3: slope of k2.
override KL: u32 = 0u;

// The estimate and its slope in logprob. `bound`: the most that k3 may be.
fn kl_estimate(x: f32, bound: f32) -> vec2f {
  let kind = KL & 7u;
  var term = vec2(x, 1.0);
  if (kind == 2u) { term = vec2(abs(x), sign(x)); }
  if (kind == 3u) { term = vec2(0.5 * x * x, x); }
  if (kind == 4u) {
    let k = clamp(-x, -MAX_LOG_RATIO, MAX_LOG_RATIO);
    let v = expm1_small(k) - k;
    let flows = v <= bound && abs(x) <= MAX_LOG_RATIO;
    term = vec2(min(v, bound), select(0.0, -expm1_small(k), flows));
  }
  if ((KL & 8u) != 0u) { term.y = x; }
  return term;
}

// e^k - 1 without cancellation near 0, where most tokens are.
fn expm1_small(k: f32) -> f32 {
  let series = k * (1.0 + k * (0.5 + k * (1.0 / 6.0 + k * (1.0 / 24.0 + k * (1.0 / 120.0)))));
  return select(exp(k) - 1.0, series, abs(k) < 0.1);
}
