// Partial sums of advantage and log-prob over trained tokens, for the covariance losses.
// scratch: GROUPS pairs (sum A, sum logprob). Grid: GROUPS workgroups whatever T is.

//#include "parts/tree.wgsl"
//#include "loss/parts/tokens.wgsl"
//#include "loss/parts/advantages.wgsl"

alias Sum = vec2<f32>;

struct Params {
  tokens: u32,
  row_stride: u32,
}

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(3) var<storage, read> advantages: array<f32>;
@group(0) @binding(4) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(5) var<storage, read_write> scratch: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var sum = vec2(0.0);
  let span = span_of(group.x * THREADS + thread, params.tokens);
  for (var t = span.first; t < span.end; t += LANES) {
    if (mask[t] != 0u) { sum += vec2(advantage(t), logprobs[t]); }
  }
  let total = sum_of_threads(thread, sum);
  if (thread == 0u) {
    scratch[2u * group.x] = total.x;
    scratch[2u * group.x + 1u] = total.y;
  }
}
