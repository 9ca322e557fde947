// KL estimates per token, their slopes and their aggregated sum.
//   values_t = K(logprob - ref), dlogprobs_t = v_t K', both 0 where mask = 0; partials: sums of v_t K and of K
//   v_t = weight, or the row's entry in `row_weights`
// Grid: GROUPS workgroups whatever T is.

//#include "loss/parts/kl.wgsl"
//#include "parts/tree.wgsl"
//#include "loss/parts/tokens.wgsl"
//#include "loss/parts/weights.wgsl"

alias Sum = vec2<f32>;

struct Params {
  tokens: u32,
  weight: f32,
  bound: f32,
}

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> ref_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(4) var<storage, read> row_weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> values: array<f32>;
@group(0) @binding(6) var<storage, read_write> dlogprobs: array<f32>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var sum = vec2(0.0);
  let span = span_of(group.x * THREADS + thread, params.tokens);
  for (var t = span.first; t < span.end; t += LANES) {
    let weight = weight_of(t);
    let trained = mask[t] != 0u;
    let term = kl_estimate(logprobs[t] - ref_logprobs[t], params.bound);
    sum += select(vec2(0.0), vec2(weight * term.x, term.x), trained);
    values[t] = select(0.0, term.x, trained);
    dlogprobs[t] = select(0.0, weight * term.y, trained);
  }
  let total = sum_of_threads(thread, sum);
  if (thread == 0u) {
    partials[2u * group.x] = total.x;
    partials[2u * group.x + 1u] = total.y;
  }
}
