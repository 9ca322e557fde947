// Parameters, buffers and the test of head/greedy.
//#include "head/parts/logits.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> greedy: array<f32>;

// Whether a vec4 of a row holds a logit that is drawn before the chosen one, `own`.
fn beats(quad: u32, x: vec4f, chosen: u32, own: f32) -> bool {
  let is_before = columns_of(quad) < vec4u(chosen);
  return any(used(quad) & ((x > vec4f(own)) | ((x == vec4f(own)) & is_before)));
}
