// A workgroup takes all chunks of a context: [rows, H, D] results.

fn part_of(index: u32) -> Part {
  var part = heads_of(index);
  let position = positions[min(part.row, params.rows - 1u)] + params.shift;
  part.first_chunk = first_seen(position) / CHUNK_KEYS;
  part.last_chunk = position / CHUNK_KEYS;
  return part;
}

fn store(part: Part, head: u32, element: u32, it: Sum) {
  result[(part.row * params.heads + head) * HEAD_QUADS + element / 4u][element % 4u] = it.sum / it.total;
}
