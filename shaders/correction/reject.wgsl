// Rejects tokens or whole rows by how far trainer and sampler are apart: clears `kept` where the statistic is outside
// [low, high]. x = clamp(logprob - rollout, 20): k1 = -x, k2 = x^2 / 2, k3 = e^x - 1 - x.
//   REDUCTION 0 = each token, 1 = sum, 2 = mean, 3 = largest of the row's trained tokens
// Grid: one invocation per row.

//#include "parts/rows.wgsl"
//#include "correction/parts/rows.wgsl"

override KIND: u32 = 1u;
override REDUCTION: u32 = 0u;

@group(0) @binding(4) var<storage, read_write> kept: array<u32>;

fn divergence(t: u32) -> f32 {
  let x = clamp(logprobs[t] - rollout_logprobs[t], -SAFETY, SAFETY);
  if (KIND == 1u) { return -x; }
  if (KIND == 2u) { return 0.5 * x * x; }
  // The series, where e^x - 1 - x would cancel.
  let series = x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0))));
  return select(exp(x) - 1.0 - x, series, abs(x) < 0.1);
}

fn compute_row(row: u32) {
  var n = 0.0;
  var sum = 0.0;
  var most = 0.0;
  for (var t = offsets[row]; t < offsets[row + 1u]; t++) {
    if (mask[t] == 0u) { continue; }
    let x = divergence(t);
    if (REDUCTION == 0u && !within(x)) { kept[t] = 0u; }
    most = select(max(most, x), x, n == 0.0);
    n += 1.0;
    sum += x;
  }
  if (REDUCTION == 0u) { return; }
  var statistic = sum;
  if (REDUCTION == 2u) { statistic = sum / max(n, 1.0); }
  if (REDUCTION == 3u) { statistic = most; }
  if (within(statistic)) { return; }
  for (var t = offsets[row]; t < offsets[row + 1u]; t++) { kept[t] = 0u; }
}
