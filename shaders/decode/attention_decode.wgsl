// Attention of one new query per row over its slot of the cache, positions 0 .. positions[r] + shift. Keys come one after
// another, each as in attention/plain.wgsl and attention/subgroup.wgsl: the bits are the same.
// keys, values [slots, max_length, key_heads D]; q at a stride and an offset per row; result [rows, heads D].
// Grid: a thread per (row, HEADS heads): one that shares a key head, or two that share their loads of it.

//#include "decode/parts/cached_attention.wgsl"
//#include "decode/parts/keys_one_by_one.wgsl"

// The widest head is 128, or two of 128 together.
const MAX_QUADS = 64u;

fn attend_row(row: u32, head: u32) {
  let q_at = q_start(row, head);
  var query: Heads;
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var attended: Attended;
  attended.highest = vec2f(LOWEST);
  attend(&attended, &query, cache_start(row, head), length_of(row));
  let to = (row * params.heads + head) * HEAD_QUADS;
  for (var h = 0u; h < HEADS; h++) {
    for (var d = 0u; d < HEAD_QUADS; d++) {
      result[to + h * HEAD_QUADS + d] = attended.sum[h * HEAD_QUADS + d] / attended.total[h];
    }
  }
}
