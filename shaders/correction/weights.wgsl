// Importance weights between trainer and sampler: exp(clamp(x, 20)) with x = logprob - rollout of the token, or summed
// over the row's trained tokens; cut at `high`, or zeroed outside [low, high] (IcePop). 0 where mask = 0.
// Grid: one invocation per row.

//#include "parts/rows.wgsl"
//#include "correction/parts/rows.wgsl"

override SEQUENCE: bool = false;
override ICEPOP: bool = false;

@group(0) @binding(4) var<storage, read_write> weights: array<f32>;

fn compute_row(row: u32) {
  let first = offsets[row];
  let end = offsets[row + 1u];
  var sum = 0.0;
  if (SEQUENCE) {
    for (var t = first; t < end; t++) {
      if (mask[t] != 0u) { sum += logprobs[t] - rollout_logprobs[t]; }
    }
  }
  for (var t = first; t < end; t++) {
    let x = select(logprobs[t] - rollout_logprobs[t], sum, SEQUENCE);
    let raw = exp(clamp(x, -SAFETY, SAFETY));
    let weight = select(min(raw, params.high), select(0.0, raw, within(raw)), ICEPOP);
    weights[t] = select(0.0, weight, mask[t] != 0u);
  }
}
