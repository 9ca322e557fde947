// attention_backward_keys for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Each of 8 lanes (keys) loads another of 8 neighbouring queries, which go round by shuffles (see attention_subgroup).
// Grid: a workgroup of one subgroup per (8 tokens, key head), a thread per token.
enable subgroups;

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

override HEAD_QUADS: u32 = 2u;
// Of the other kernels of the set; unused here.
override HEADS: u32 = 2u;

// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 32u;
const LANES = 8u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOW = vec4u(0u, 1u, 2u, 3u);
const HIGH = vec4u(4u, 5u, 6u, 7u);

// A number of each of lanes 0 to 3, and of lanes 4 to 7.
fn first_four(x: f32) -> vec4f {
  return vec4f(subgroupShuffle(x, 0u), subgroupShuffle(x, 1u), subgroupShuffle(x, 2u), subgroupShuffle(x, 3u));
}

fn last_four(x: f32) -> vec4f {
  return vec4f(subgroupShuffle(x, 4u), subgroupShuffle(x, 5u), subgroupShuffle(x, 6u), subgroupShuffle(x, 7u));
}

@compute @workgroup_size(LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  let flat = group.y * groups.x + group.x;
  let block = flat / params.key_heads;
  let head = flat - block * params.key_heads;
  let first = block * LANES;
  if (first >= params.tokens) {
    return;
  }
  let last = min(first + LANES, params.tokens) - 1u;
  let token = min(first + lane, last);
  let later = sequence_end[token] - token;
  let group_heads = params.heads / params.key_heads;
  let k_at = (token * params.k_stride + params.k_offset) / 4u + head * HEAD_QUADS;
  let v_at = (token * params.v_stride + params.v_offset) / 4u + head * HEAD_QUADS;
  var key: array<vec4f, MAX_QUADS>;
  var value: array<vec4f, MAX_QUADS>;
  var key_sum: array<vec4f, MAX_QUADS>;
  var value_sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    key[d] = k[k_at + d] * (params.scale * LOG2_E);
    value[d] = v[v_at + d];
  }
  let queries_end = sequence_end[last];
  for (var t = first; t < queries_end; t += LANES) {
    let own_token = min(t + lane, queries_end - 1u);
    // One comparison for token <= t < end: what is before the token wraps to a large number.
    let low_seen = vec4u(t - token) + LOW < vec4u(later);
    let high_seen = vec4u(t - token) + HIGH < vec4u(later);
    for (var h = head * group_heads; h < (head + 1u) * group_heads; h++) {
      let q_at = (own_token * params.q_stride + params.q_offset) / 4u + h * HEAD_QUADS;
      let row = own_token * params.heads + h;
      let kept = statistics[row];
      let log_sum = kept.x * LOG2_E;
      var low = -first_four(log_sum);
      var high = -last_four(log_sum);
      let delta = kept.y;
      var low_grad = -first_four(delta);
      var high_grad = -last_four(delta);
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let own = q[q_at + d];
        let q0 = subgroupShuffle(own, 0u);
        let q1 = subgroupShuffle(own, 1u);
        let q2 = subgroupShuffle(own, 2u);
        let q3 = subgroupShuffle(own, 3u);
        let q4 = subgroupShuffle(own, 4u);
        let q5 = subgroupShuffle(own, 5u);
        let q6 = subgroupShuffle(own, 6u);
        let q7 = subgroupShuffle(own, 7u);
        low += vec4f(dot(key[d], q0), dot(key[d], q1), dot(key[d], q2), dot(key[d], q3));
        high += vec4f(dot(key[d], q4), dot(key[d], q5), dot(key[d], q6), dot(key[d], q7));
      }
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let own = out_grad[row * HEAD_QUADS + d];
        let g0 = subgroupShuffle(own, 0u);
        let g1 = subgroupShuffle(own, 1u);
        let g2 = subgroupShuffle(own, 2u);
        let g3 = subgroupShuffle(own, 3u);
        let g4 = subgroupShuffle(own, 4u);
        let g5 = subgroupShuffle(own, 5u);
        let g6 = subgroupShuffle(own, 6u);
        let g7 = subgroupShuffle(own, 7u);
        low_grad += vec4f(dot(value[d], g0), dot(value[d], g1), dot(value[d], g2), dot(value[d], g3));
        high_grad += vec4f(dot(value[d], g4), dot(value[d], g5), dot(value[d], g6), dot(value[d], g7));
      }
      low = select(vec4f(), exp2(low), low_seen);
      high = select(vec4f(), exp2(high), high_seen);
      low_grad *= low;
      high_grad *= high;
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let own = q[q_at + d];
        let q0 = subgroupShuffle(own, 0u);
        let q1 = subgroupShuffle(own, 1u);
        let q2 = subgroupShuffle(own, 2u);
        let q3 = subgroupShuffle(own, 3u);
        let q4 = subgroupShuffle(own, 4u);
        let q5 = subgroupShuffle(own, 5u);
        let q6 = subgroupShuffle(own, 6u);
        let q7 = subgroupShuffle(own, 7u);
        key_sum[d] += low_grad.x * q0 + low_grad.y * q1 + low_grad.z * q2 + low_grad.w * q3
          + high_grad.x * q4 + high_grad.y * q5 + high_grad.z * q6 + high_grad.w * q7;
      }
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let own = out_grad[row * HEAD_QUADS + d];
        let g0 = subgroupShuffle(own, 0u);
        let g1 = subgroupShuffle(own, 1u);
        let g2 = subgroupShuffle(own, 2u);
        let g3 = subgroupShuffle(own, 3u);
        let g4 = subgroupShuffle(own, 4u);
        let g5 = subgroupShuffle(own, 5u);
        let g6 = subgroupShuffle(own, 6u);
        let g7 = subgroupShuffle(own, 7u);
        value_sum[d] += low.x * g0 + low.y * g1 + low.z * g2 + low.w * g3
          + high.x * g4 + high.y * g5 + high.z * g6 + high.w * g7;
      }
    }
  }
  if (first + lane > last) {
    return;
  }
  let dk_at = (token * params.dk_stride + params.dk_offset) / 4u + head * HEAD_QUADS;
  let dv_at = (token * params.dv_stride + params.dv_offset) / 4u + head * HEAD_QUADS;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    key_value_grad[dk_at + d] = key_sum[d] * params.scale;
    key_value_grad[dv_at + d] = value_sum[d];
  }
}
