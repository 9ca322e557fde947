// A thread's part of a decoding step's attention. The header of decode/attention_step.wgsl has the formula.

//#include "decode/parts/step.wgsl"
//#include "decode/parts/keys_one_by_one.wgsl"

const MAX_QUADS = 16u;

fn attend_row(row: u32, head: u32) {
  let sharing = params.heads / params.key_heads;
  let key_head = head / sharing;
  let position = positions[row] + params.shift;
  let half = HEAD_QUADS / 2u;
  let angle = position * HEAD_QUADS;
  let row_at = row * (params.heads + 2u * params.key_heads) * HEAD_QUADS;
  let key_at = row_at + (params.heads + key_head) * HEAD_QUADS;
  let value_at = key_at + params.key_heads * HEAD_QUADS;
  let cached = Cached(row, key_head * HEAD_QUADS);
  let kept_at = place(row, position) * params.key_heads * HEAD_QUADS + cached.head_at;
  let keeps = head % sharing == 0u;

  var query: Heads;
  var own_key: Heads;
  for (var d = 0u; d < hidden(half); d++) {
    let cosine = angles[angle + d];
    let sine = angles[angle + half + d];
    let key = turn(Halves(qkv[key_at + d], qkv[key_at + half + d]), cosine, sine);
    let low = keep_quad(key.low);
    let high = keep_quad(key.high);
    push(&own_key, 0u, half, kept_quad(low));
    push(&own_key, half, half, kept_quad(high));
    if (keeps) {
      keys[kept_at + d] = low;
      keys[kept_at + half + d] = high;
      values[kept_at + d] = keep_quad(qkv[value_at + d]);
      values[kept_at + half + d] = keep_quad(qkv[value_at + half + d]);
    }
    for (var h = 0u; h < HEADS; h++) {
      let q_at = row_at + (head + h) * HEAD_QUADS + d;
      let q = turn(Halves(qkv[q_at], qkv[q_at + half]), cosine, sine);
      push(&query, h * HEAD_QUADS, half, q.low * (params.scale * LOG2_E));
      push(&query, h * HEAD_QUADS + half, half, q.high * (params.scale * LOG2_E));
    }
  }
  var attended: Attended;
  attended.highest = vec2f(LOWEST);
  attend(&attended, &query, cached, first_seen(position), position);
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
  var sum = attended.sum;
  for (var d = 0u; d < hidden(HEAD_QUADS); d++) {
    let value = kept_quad(keep_quad(qkv[value_at + d]));
    for (var h = 0u; h < HEADS; h++) {
      let joined = sum[h * HEAD_QUADS] * weights.keep[h] + weights.next[h] * value;
      result[to + h * HEAD_QUADS + d] = joined / total[h];
      push(&sum, h * HEAD_QUADS, HEAD_QUADS, vec4f());
    }
  }
}
