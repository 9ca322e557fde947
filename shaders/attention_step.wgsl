// A decoding step's attention, and what comes before it: q and k turned by their position, k and v kept in the cache.
// qkv [rows, (H + 2 KV) D]; angles [positions, D]: cos of D/2 pairs, then sin; keys, values [slots, max_length, KV D],
// of which this step adds positions[r] + shift; result [rows, H D]. A row beyond the cache's end keeps nothing.
// D is a multiple of 8. Grid: a thread per (row, HEADS heads): one that shares a key head, or two that do.

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  max_length: u32,
  shift: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(1) var<storage, read> angles: array<vec4f>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> keys: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> values: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 8u;
override HEAD_QUADS: u32 = 2u;
override HEADS: u32 = 1u;

// See attention_decode.wgsl: unrolled, what narrower heads do not touch is dropped.
const MAX_QUADS = 16u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = (group.y * groups.x + group.x) * WORKGROUP + lane;
  let bundles = params.heads / HEADS;
  if (index >= params.rows * bundles) {
    return;
  }
  let row = index / bundles;
  let head = (index - row * bundles) * HEADS;
  let sharing = params.heads / params.key_heads;
  let key_head = head / sharing;
  let position = positions[row] + params.shift;
  let half = HEAD_QUADS / 2u;
  let angle = position * HEAD_QUADS;
  let row_at = row * (params.heads + 2u * params.key_heads) * HEAD_QUADS;
  let key_at = row_at + (params.heads + key_head) * HEAD_QUADS;
  let value_at = key_at + params.key_heads * HEAD_QUADS;
  let key_stride = params.key_heads * HEAD_QUADS;
  var at = slots[row] * params.max_length * key_stride + key_head * HEAD_QUADS;
  let kept_at = at + position * key_stride;
  let keeps = head % sharing == 0u && position < params.max_length;

  // The row's own key and value first: the softmax begins with them.
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  var own = array(vec4f(), vec4f());
  for (var d = 0u; d < half; d++) {
    let cosine = angles[angle + d];
    let sine = angles[angle + half + d];
    let key_low = qkv[key_at + d];
    let key_high = qkv[key_at + half + d];
    let low = key_low * cosine - key_high * sine;
    let high = key_high * cosine + key_low * sine;
    let value_low = qkv[value_at + d];
    let value_high = qkv[value_at + half + d];
    if (keeps) {
      keys[kept_at + d] = low;
      keys[kept_at + half + d] = high;
      values[kept_at + d] = value_low;
      values[kept_at + half + d] = value_high;
    }
    for (var h = 0u; h < HEADS; h++) {
      let q_at = row_at + (head + h) * HEAD_QUADS + d;
      let q_low = qkv[q_at] * (params.scale * LOG2_E);
      let q_high = qkv[q_at + half] * (params.scale * LOG2_E);
      let turned_low = q_low * cosine - q_high * sine;
      let turned_high = q_high * cosine + q_low * sine;
      query[h * HEAD_QUADS + d] = turned_low;
      query[h * HEAD_QUADS + half + d] = turned_high;
      own[h] += turned_low * low + turned_high * high;
      sum[h * HEAD_QUADS + d] = value_low;
      sum[h * HEAD_QUADS + half + d] = value_high;
    }
  }
  var highest = vec2f();
  for (var h = 0u; h < HEADS; h++) {
    highest[h] = dot(own[h], vec4f(1.0));
  }
  var total = vec2f(1.0);
  let before = min(position, params.max_length);
  for (var s = 0u; s < before; s++) {
    // Spelt out: Dawn on lavapipe does not clear an array declared in a loop without a value.
    var products = array(vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let key = keys[at + d];
      for (var h = 0u; h < HEADS; h++) {
        products[h] += query[h * HEAD_QUADS + d] * key;
      }
    }
    var keep = vec2f();
    var weight = vec2f();
    for (var h = 0u; h < HEADS; h++) {
      let score = dot(products[h], vec4f(1.0));
      let higher = max(highest[h], score);
      keep[h] = exp2(highest[h] - higher);
      weight[h] = exp2(score - higher);
      highest[h] = higher;
      total[h] = total[h] * keep[h] + weight[h];
    }
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let value = values[at + d];
      for (var h = 0u; h < HEADS; h++) {
        sum[h * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] * keep[h] + weight[h] * value;
      }
    }
    at += key_stride;
  }
  let to = (row * params.heads + head) * HEAD_QUADS;
  for (var h = 0u; h < HEADS; h++) {
    for (var d = 0u; d < HEAD_QUADS; d++) {
      result[to + h * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] / total[h];
    }
  }
}
