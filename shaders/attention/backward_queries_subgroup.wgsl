// attention_backward_queries for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Each of 8 lanes (queries) loads another of 8 neighbouring keys, which go round by shuffles (see attention_subgroup).
// Grid: a workgroup of one subgroup per (8 tokens, HEADS heads that share a key head), a thread per token.
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

override HEAD_QUADS: u32 = 2u;
override HEADS: u32 = 2u;

// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 64u;
const LANES = 8u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOW = vec4u(0u, 1u, 2u, 3u);
const HIGH = vec4u(4u, 5u, 6u, 7u);

@compute @workgroup_size(LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  let flat = group.y * groups.x + group.x;
  let bundles = params.heads / HEADS;
  let block = flat / bundles;
  let head = (flat - block * bundles) * HEADS;
  let first = block * LANES;
  if (first >= params.tokens) {
    return;
  }
  let last = min(first + LANES, params.tokens) - 1u;
  let token = min(first + lane, last);
  let start = sequence_start[token];
  let shared_at = head * params.key_heads / params.heads * HEAD_QUADS;
  let row = token * params.heads + head;
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  var query: array<vec4f, MAX_QUADS>;
  var grad: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  var delta: array<f32, 2>;
  var log_sum: array<f32, 2>;
  for (var h = 0u; h < HEADS; h++) {
    var deltas = vec4f();
    for (var d = h * HEAD_QUADS; d < (h + 1u) * HEAD_QUADS; d++) {
      query[d] = q[q_at + d] * (params.scale * LOG2_E);
      grad[d] = out_grad[row * HEAD_QUADS + d];
      deltas += grad[d] * out[row * HEAD_QUADS + d];
    }
    delta[h] = dot(deltas, vec4f(1.0));
    log_sum[h] = statistics[(row + h) * 2u] * LOG2_E;
  }
  for (var key = sequence_start[first]; key <= last; key += LANES) {
    let own_key = min(key + lane, last);
    let k_at = (own_key * params.k_stride + params.k_offset) / 4u + shared_at;
    let v_at = (own_key * params.v_stride + params.v_offset) / 4u + shared_at;
    // Spelt out: Dawn on lavapipe does not clear an array declared in a loop without a value.
    var score = array(vec4f(), vec4f(), vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let own = k[k_at + d];
      let k0 = subgroupShuffle(own, 0u);
      let k1 = subgroupShuffle(own, 1u);
      let k2 = subgroupShuffle(own, 2u);
      let k3 = subgroupShuffle(own, 3u);
      let k4 = subgroupShuffle(own, 4u);
      let k5 = subgroupShuffle(own, 5u);
      let k6 = subgroupShuffle(own, 6u);
      let k7 = subgroupShuffle(own, 7u);
      for (var h = 0u; h < HEADS; h++) {
        let part = query[h * HEAD_QUADS + d];
        score[h * 2u] += vec4f(dot(part, k0), dot(part, k1), dot(part, k2), dot(part, k3));
        score[h * 2u + 1u] += vec4f(dot(part, k4), dot(part, k5), dot(part, k6), dot(part, k7));
      }
    }
    var weight_grad = array(vec4f(), vec4f(), vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let own = v[v_at + d];
      let v0 = subgroupShuffle(own, 0u);
      let v1 = subgroupShuffle(own, 1u);
      let v2 = subgroupShuffle(own, 2u);
      let v3 = subgroupShuffle(own, 3u);
      let v4 = subgroupShuffle(own, 4u);
      let v5 = subgroupShuffle(own, 5u);
      let v6 = subgroupShuffle(own, 6u);
      let v7 = subgroupShuffle(own, 7u);
      for (var h = 0u; h < HEADS; h++) {
        let part = grad[h * HEAD_QUADS + d];
        weight_grad[h * 2u] += vec4f(dot(part, v0), dot(part, v1), dot(part, v2), dot(part, v3));
        weight_grad[h * 2u + 1u] += vec4f(dot(part, v4), dot(part, v5), dot(part, v6), dot(part, v7));
      }
    }
    // One comparison for start <= key <= token: what is below the start wraps to a large number.
    let low_seen = vec4u(key - start) + LOW <= vec4u(token - start);
    let high_seen = vec4u(key - start) + HIGH <= vec4u(token - start);
    for (var h = 0u; h < HEADS; h++) {
      let low = exp2(score[h * 2u] - log_sum[h]) * (weight_grad[h * 2u] - delta[h]);
      let high = exp2(score[h * 2u + 1u] - log_sum[h]) * (weight_grad[h * 2u + 1u] - delta[h]);
      score[h * 2u] = select(vec4f(), low, low_seen);
      score[h * 2u + 1u] = select(vec4f(), high, high_seen);
    }
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let own = k[k_at + d];
      let k0 = subgroupShuffle(own, 0u);
      let k1 = subgroupShuffle(own, 1u);
      let k2 = subgroupShuffle(own, 2u);
      let k3 = subgroupShuffle(own, 3u);
      let k4 = subgroupShuffle(own, 4u);
      let k5 = subgroupShuffle(own, 5u);
      let k6 = subgroupShuffle(own, 6u);
      let k7 = subgroupShuffle(own, 7u);
      for (var h = 0u; h < HEADS; h++) {
        let low = score[h * 2u];
        let high = score[h * 2u + 1u];
        sum[h * HEAD_QUADS + d] += low.x * k0 + low.y * k1 + low.z * k2 + low.w * k3
          + high.x * k4 + high.y * k5 + high.z * k6 + high.w * k7;
      }
    }
  }
  if (first + lane > last) {
    return;
  }
  for (var h = 0u; h < HEADS; h++) {
    statistics[(row + h) * 2u + 1u] = delta[h];
  }
  let to = (token * params.grad_stride + params.grad_offset) / 4u + head * HEAD_QUADS;
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    q_grad[to + d] = sum[d] * params.scale;
  }
}
