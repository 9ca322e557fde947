// A workgroup takes one chunk of a context: [rows, H, chunks, D + 4] sums of values, the weights' total and the highest score, for
// decode/attention_merge.wgsl.

//#include "decode/parts/chunks.wgsl"

fn part_of(index: u32) -> Part {
  let chunks = row_chunks();
  var part = heads_of(index / chunks);
  let position = positions[min(part.row, params.rows - 1u)] + params.shift;
  let chunk = index % chunks;
  part.first_chunk = max(first_seen(position) / CHUNK_KEYS, chunk);
  part.last_chunk = min(position / CHUNK_KEYS, chunk);
  return part;
}

fn store(part: Part, head: u32, element: u32, it: Sum) {
  let to = ((part.row * params.heads + head) * row_chunks() + part.first_chunk) * (HEAD_QUADS + 1u);
  result[to + element / 4u][element % 4u] = it.sum;
  if (element == 0u) { result[to + HEAD_QUADS] = vec4f(it.total, it.highest, 0.0, 0.0); }
}
