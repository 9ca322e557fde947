// KL estimates per token, their slopes and their aggregated sum.
//   values_t = K(logprob - ref), dlogprobs_t = v_t K', both 0 where mask = 0; partials: sums of v_t K and of K
//   v_t = weight, or the row's entry in `row_weights`
// Grid: GROUPS workgroups whatever T is.

//#include "loss/parts/kl.wgsl"
//#include "loss/parts/tokens.wgsl"
//#include "loss/parts/weights.wgsl"

alias Sum = vec2f;

struct Params { tokens: u32, weight: f32, bound: f32 }

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> ref_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(4) var<storage, read> row_weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> values: array<f32>;
@group(0) @binding(6) var<storage, read_write> dlogprobs: array<f32>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn term(t: u32) -> Sum {
  let weight = weight_of(t);
  let trained = mask[t] != 0u;
  let term = kl_estimate(logprobs[t] - ref_logprobs[t], params.bound);
  values[t] = select(0.0, term.x, trained);
  dlogprobs[t] = select(0.0, weight * term.y, trained);
  return select(vec2(0.0), vec2(weight * term.x, term.x), trained);
}

fn store(group: u32, sum: Sum) {
  partials[2u * group] = sum.x;
  partials[2u * group + 1u] = sum.y;
}
