// Gradient of attention in q, and delta = rowsum(out_grad * out) into statistics[t, h, 1].
//   q_grad[t] = scale sum_s p_ts (out_grad[t] v[s] - delta[t]) k[s],  p_ts = exp(scale q[t] k[s] - statistics[t, h, 0])
// Grid: a workgroup per (block of tokens, head), a thread per token. Dao 2023 (FlashAttention-2), without its atomics.
//#include "parts/groups.wgsl"

struct Params {
  tokens: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  k_stride: u32,
  k_offset: u32,
  v_stride: u32,
  v_offset: u32,
  grad_stride: u32,
  grad_offset: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> out: array<vec4f>;
@group(0) @binding(4) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(5) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(6) var<storage, read_write> statistics: array<f32>;
@group(0) @binding(7) var<storage, read_write> q_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 8u;
override HEAD_QUADS: u32 = 2u;

override UNROLL: u32 = 1u;

// The widest head is 128. Unrolled loops keep their arrays in registers, and what they do not touch is dropped; a
// software driver needs minutes to compile those of wide heads, so there the bound is hidden from it.
const MAX_QUADS = 32u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  // One head of a block of neighbouring tokens: every thread walks the same keys, so that their loads are shared.
  let flat = group_index(group);
  let block = flat / params.heads;
  let head = flat - block * params.heads;
  if (block * WORKGROUP >= params.tokens) {
    return;
  }
  let first = block * WORKGROUP;
  let last = min(first + WORKGROUP, params.tokens) - 1u;
  let token = min(first + lane, last);
  let start = sequence_start[token];
  let shared_at = head * params.key_heads / params.heads * HEAD_QUADS;
  let row = token * params.heads + head;
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  let quads = select(min(HEAD_QUADS, params.q_stride), HEAD_QUADS, UNROLL != 0u);
  var query: array<vec4f, MAX_QUADS>;
  var grad: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  var deltas = vec4f();
  for (var d = 0u; d < quads; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
    grad[d] = out_grad[row * HEAD_QUADS + d];
    deltas += grad[d] * out[row * HEAD_QUADS + d];
  }
  let delta = dot(deltas, vec4f(1.0));
  let log_sum = statistics[row * 2u] * LOG2_E;
  for (var key = sequence_start[first]; key <= last; key++) {
    let k_at = (key * params.k_stride + params.k_offset) / 4u + shared_at;
    let v_at = (key * params.v_stride + params.v_offset) / 4u + shared_at;
    var scores = vec4f();
    var weight_grads = vec4f();
    for (var d = 0u; d < quads; d++) {
      scores += query[d] * k[k_at + d];
      weight_grads += grad[d] * v[v_at + d];
    }
    let visible = key >= start && key <= token;
    let weight = select(0.0, exp2(dot(scores, vec4f(1.0)) - log_sum), visible);
    let score_grad = weight * (dot(weight_grads, vec4f(1.0)) - delta);
    for (var d = 0u; d < quads; d++) {
      sum[d] += score_grad * k[k_at + d];
    }
  }
  if (first + lane > last) {
    return;
  }
  statistics[row * 2u + 1u] = delta;
  let to = (token * params.grad_stride + params.grad_offset) / 4u + head * HEAD_QUADS;
  for (var d = 0u; d < quads; d++) {
    q_grad[to + d] = sum[d] * params.scale;
  }
}
