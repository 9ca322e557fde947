// A decoding step's attention, and what comes before it: q and k turned by their position, k and v kept in the cache.
// qkv [rows, (H + 2 KV) D]; angles [positions, D]: cos of D/2 pairs, then sin; keys, values [slots, max_length, KV D],
// of which this step adds positions[r] + shift; result [rows, H D]. A row beyond the cache's end keeps nothing.
// Keys come one after another as in decode/attention_decode.wgsl, the row's own last: the bits are the same. D is a multiple of
// 8. Grid: a thread per (row, HEADS heads): one that shares a key head, or two that do.

//#include "decode/parts/keys_one_by_one.wgsl"

const MAX_QUADS = 16u;

struct Params { rows: u32, heads: u32, key_heads: u32, max_length: u32, shift: u32, scale: f32 }

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(1) var<storage, read> angles: array<vec4f>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> keys: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> values: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn attend_row(row: u32, head: u32) {
  let sharing = params.heads / params.key_heads;
  let key_head = head / sharing;
  let position = positions[row] + params.shift;
  let half = HEAD_QUADS / 2u;
  let angle = position * HEAD_QUADS;
  let row_at = row * (params.heads + 2u * params.key_heads) * HEAD_QUADS;
  let key_at = row_at + (params.heads + key_head) * HEAD_QUADS;
  let value_at = key_at + params.key_heads * HEAD_QUADS;
  let key_stride = params.key_heads * HEAD_QUADS;
  let at = slots[row] * params.max_length * key_stride + key_head * HEAD_QUADS;
  let kept_at = at + position * key_stride;
  let keeps = head % sharing == 0u && position < params.max_length;

  var query: Heads;
  var own_key: Heads;
  for (var d = 0u; d < half; d++) {
    let cosine = angles[angle + d];
    let sine = angles[angle + half + d];
    let low = qkv[key_at + d];
    let high = qkv[key_at + half + d];
    own_key[d] = fma(low, cosine, -(high * sine));
    own_key[half + d] = fma(high, cosine, low * sine);
    if (keeps) {
      keys[kept_at + d] = own_key[d];
      keys[kept_at + half + d] = own_key[half + d];
      values[kept_at + d] = qkv[value_at + d];
      values[kept_at + half + d] = qkv[value_at + half + d];
    }
    for (var h = 0u; h < HEADS; h++) {
      let q_at = row_at + (head + h) * HEAD_QUADS + d;
      let q_low = qkv[q_at];
      let q_high = qkv[q_at + half];
      query[h * HEAD_QUADS + d] = fma(q_low, cosine, -(q_high * sine)) * (params.scale * LOG2_E);
      query[h * HEAD_QUADS + half + d] = fma(q_high, cosine, q_low * sine) * (params.scale * LOG2_E);
    }
  }
  var attended: Attended;
  attended.highest = vec2f(LOWEST);
  attend(&attended, &query, at, min(position, params.max_length));
  // Another thread may be writing the row's own key to the cache: it is not read from there.
  var score = vec2f();
  for (var d = 0u; d < HEAD_QUADS; d++) {
    for (var h = 0u; h < HEADS; h++) {
      score[h] += dot(query[h * HEAD_QUADS + d], own_key[d]);
    }
  }
  let weights = weigh(score, attended.highest);
  let total = attended.total * weights.keep + weights.next;
  let to = (row * params.heads + head) * HEAD_QUADS;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    let value = qkv[value_at + d];
    for (var h = 0u; h < HEADS; h++) {
      let joined = attended.sum[h * HEAD_QUADS + d] * weights.keep[h] + weights.next[h] * value;
      result[to + h * HEAD_QUADS + d] = joined / total[h];
    }
  }
}
