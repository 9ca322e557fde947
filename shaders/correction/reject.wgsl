// Rejects tokens or whole rows by how far trainer and sampler are apart: clears `kept` where the statistic is outside
// [low, high]. x = clamp(logprob - rollout, 20). The functions divergence of x and reduce of a row's divergences, and BY_ROW, are
// written from the statistic (src/engine/algorithm/correction/statistics.ts). A row without trained tokens has 0.
// Grid: one invocation per row.

//#include "parts/rows.wgsl"
//#include "correction/parts/rows.wgsl"

@group(0) @binding(4) var<storage, read_write> kept: array<u32>;

// e^x - 1 - x, by its series where that would cancel.
fn k3(x: f32) -> f32 {
  let series = x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0))));
  return select(exp(x) - 1.0 - x, series, abs(x) < 0.1);
}

fn compute_row(row: u32) {
  var n = 0.0;
  var sum = 0.0;
  var most = 0.0;
  for (var t = offsets[row]; t < offsets[row + 1u]; t++) {
    if (mask[t] == 0u) { continue; }
    let x = divergence(clamp(logprobs[t] - rollout_logprobs[t], -SAFETY, SAFETY));
    if (!BY_ROW && !within(x)) { kept[t] = 0u; }
    most = select(max(most, x), x, n == 0.0);
    n += 1.0;
    sum += x;
  }
  if (!BY_ROW) { return; }
  var statistic = 0.0;
  if (n > 0.0) { statistic = reduce(n, sum, most); }
  if (within(statistic)) { return; }
  for (var t = offsets[row]; t < offsets[row + 1u]; t++) { kept[t] = 0u; }
}
