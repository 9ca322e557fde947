// A thread's part of attention over the cache. The header of decode/attention_decode.wgsl has the formula.

//#include "decode/parts/cached_attention.wgsl"
//#include "decode/parts/keys_one_by_one.wgsl"

// The widest head is 256, or two of 128 together.
const MAX_QUADS = 64u;

fn attend_row(row: u32, head: u32) {
  let q_at = q_start(row, head);
  var query: Heads;
  for (var d = 0u; d < hidden(HEAD_QUADS * HEADS); d++) {
    push(&query, 0u, HEAD_QUADS * HEADS, q[q_at + d] * (params.scale * LOG2_E));
  }
  var attended: Attended;
  attended.highest = vec2f(LOWEST);
  let position = positions[row] + params.shift;
  let cached = Cached(row, head * params.key_heads / params.heads * HEAD_QUADS);
  attend(&attended, &query, cached, first_seen(position), position + 1u);
  let to = (row * params.heads + head) * HEAD_QUADS;
  var sum = attended.sum;
  for (var h = 0u; h < HEADS; h++) {
    for (var d = 0u; d < hidden(HEAD_QUADS); d++) {
      result[to + h * HEAD_QUADS + d] = sum[h * HEAD_QUADS] / attended.total[h];
      push(&sum, h * HEAD_QUADS, HEAD_QUADS, vec4f());
    }
  }
}
