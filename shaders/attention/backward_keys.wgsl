// Gradients of attention in k and v, over the later tokens t of the sequence and the heads h of the group.
//   v_grad[s] = sum_t,h p_ts out_grad[t, h],  k_grad[s] = scale sum_t,h p_ts (out_grad[t, h] v[s] - delta[t, h]) q[t, h]
//   p_ts = exp(scale q k - statistics[t, h, 0]), delta = statistics[t, h, 1] (attention_backward_queries writes it)
// Grid: a workgroup per (block of tokens, key head), a thread per token s. No atomics.
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
  dk_stride: u32,
  dk_offset: u32,
  dv_stride: u32,
  dv_offset: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read> sequence_end: array<u32>;
@group(0) @binding(5) var<storage, read> statistics: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> key_value_grad: array<vec4f>;
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
  let block = flat / params.key_heads;
  let head = flat - block * params.key_heads;
  if (block * WORKGROUP >= params.tokens) {
    return;
  }
  let first = block * WORKGROUP;
  let last = min(first + WORKGROUP, params.tokens) - 1u;
  let token = min(first + lane, last);
  let end = sequence_end[token];
  let group_heads = params.heads / params.key_heads;
  let k_at = (token * params.k_stride + params.k_offset) / 4u + head * HEAD_QUADS;
  let v_at = (token * params.v_stride + params.v_offset) / 4u + head * HEAD_QUADS;
  let quads = select(min(HEAD_QUADS, params.q_stride), HEAD_QUADS, UNROLL != 0u);
  var key: array<vec4f, MAX_QUADS>;
  var value: array<vec4f, MAX_QUADS>;
  var key_sum: array<vec4f, MAX_QUADS>;
  var value_sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < quads; d++) {
    key[d] = k[k_at + d] * (params.scale * LOG2_E);
    value[d] = v[v_at + d];
  }
  let queries_end = sequence_end[last];
  for (var t = first; t < queries_end; t++) {
    let visible = t >= token && t < end;
    let q_at = (t * params.q_stride + params.q_offset) / 4u + head * group_heads * HEAD_QUADS;
    let row = t * params.heads + head * group_heads;
    for (var h = 0u; h < group_heads; h++) {
      var scores = vec4f();
      var weight_grads = vec4f();
      for (var d = 0u; d < quads; d++) {
        scores += key[d] * q[q_at + h * HEAD_QUADS + d];
        weight_grads += value[d] * out_grad[(row + h) * HEAD_QUADS + d];
      }
      let kept = statistics[row + h];
      let weight = select(0.0, exp2(dot(scores, vec4f(1.0)) - kept.x * LOG2_E), visible);
      let score_grad = weight * (dot(weight_grads, vec4f(1.0)) - kept.y);
      for (var d = 0u; d < quads; d++) {
        key_sum[d] += score_grad * q[q_at + h * HEAD_QUADS + d];
        value_sum[d] += weight * out_grad[(row + h) * HEAD_QUADS + d];
      }
    }
  }
  if (first + lane > last) {
    return;
  }
  let dk_at = (token * params.dk_stride + params.dk_offset) / 4u + head * HEAD_QUADS;
  let dv_at = (token * params.dv_stride + params.dv_offset) / 4u + head * HEAD_QUADS;
  for (var d = 0u; d < quads; d++) {
    key_value_grad[dk_at + d] = key_sum[d] * params.scale;
    key_value_grad[dv_at + d] = value_sum[d];
  }
}
