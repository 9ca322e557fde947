// attention for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Such drivers issue every storage load lane by lane. So each of 8 lanes (queries of one head) loads another of 8
// neighbouring keys, and the keys go round by shuffles (broadcasts are slower). A token takes its keys one after another,
// each as decode/attention_decode.wgsl does: where a sequence lies, or whether its keys are cached, changes no bit.
// Grid: a workgroup of one subgroup per (8 tokens, head), a thread per token.
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
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> statistics: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

override HEAD_QUADS: u32 = 2u;
override HEADS: u32 = 2u;

// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 64u;
const LANES = 8u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOWEST = -1e30;
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
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var highest = vec2f(LOWEST);
  var total = vec2f();
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
    // One comparison for start <= key <= token: what is below the start wraps to a large number.
    let low_seen = vec4u(key - start) + LOW <= vec4u(token - start);
    let high_seen = vec4u(key - start) + HIGH <= vec4u(token - start);
    // What each key leaves of the sum before it. Scores become weights.
    var keep = array(vec4f(1.0), vec4f(1.0), vec4f(1.0), vec4f(1.0));
    for (var h = 0u; h < HEADS; h++) {
      for (var part = 0u; part < 2u; part++) {
        let seen = select(high_seen, low_seen, vec4<bool>(part == 0u));
        let all = score[h * 2u + part];
        var before = vec4f(highest[h]);
        before.y = select(before.x, max(before.x, all.x), seen.x);
        before.z = select(before.y, max(before.y, all.y), seen.y);
        before.w = select(before.z, max(before.z, all.z), seen.z);
        highest[h] = select(before.w, max(before.w, all.w), seen.w);
        // Of exp2(highest - higher) and exp2(score - higher), one is 1.
        let falls = exp2(-abs(all - before));
        let rises = all > before;
        let own_keep = select(vec4f(1.0), falls, rises & seen);
        let weight = select(vec4f(), select(falls, vec4f(1.0), rises), seen);
        total[h] = total[h] * own_keep.x + weight.x;
        total[h] = total[h] * own_keep.y + weight.y;
        total[h] = total[h] * own_keep.z + weight.z;
        total[h] = total[h] * own_keep.w + weight.w;
        keep[h * 2u + part] = own_keep;
        score[h * 2u + part] = weight;
      }
    }
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
        let low = score[h * 2u];
        let high = score[h * 2u + 1u];
        let low_keep = keep[h * 2u];
        let high_keep = keep[h * 2u + 1u];
        var joined = sum[h * HEAD_QUADS + d];
        joined = joined * low_keep.x + low.x * v0;
        joined = joined * low_keep.y + low.y * v1;
        joined = joined * low_keep.z + low.z * v2;
        joined = joined * low_keep.w + low.w * v3;
        joined = joined * high_keep.x + high.x * v4;
        joined = joined * high_keep.y + high.y * v5;
        joined = joined * high_keep.z + high.z * v6;
        joined = joined * high_keep.w + high.w * v7;
        sum[h * HEAD_QUADS + d] = joined;
      }
    }
  }
  if (first + lane > last) {
    return;
  }
  for (var h = 0u; h < HEADS; h++) {
    let row = token * params.heads + head + h;
    for (var d = 0u; d < HEAD_QUADS; d++) {
      result[row * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] / total[h];
    }
    statistics[row * 2u] = highest[h] / LOG2_E + log(total[h]);
  }
}
