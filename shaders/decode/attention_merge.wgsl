// Folds the chunks of a context, which decode/attention_step_chunks.wgsl leaves, to attention's result: out [rows, H, D] from
// parts [rows, H, chunks, D + 4] (D sums of values, the weights' total, the highest score). Chunks that a row does not see are not read.
// Grid: a thread per vec4 of out.

//#include "parts/threads.wgsl"
//#include "attention/parts/merge.wgsl"
//#include "decode/parts/page_size.wgsl"
//#include "decode/parts/window.wgsl"
//#include "decode/parts/chunks.wgsl"

struct Params { rows: u32, heads: u32, row_pages: u32, shift: u32, window: u32 }

@group(0) @binding(0) var<storage, read> parts: array<vec4f>;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override HEAD_QUADS: u32 = 16u;

fn compute_thread(index: u32) {
  let head = index / HEAD_QUADS;
  if (head >= params.rows * params.heads) { return; }
  let position = positions[head / params.heads] + params.shift;
  let first = first_seen(position) / CHUNK_KEYS;
  let stride = HEAD_QUADS + 1u;
  var at = (head * row_chunks() + first) * stride;
  var sum = parts[at + index % HEAD_QUADS];
  var total = vec4f(parts[at + HEAD_QUADS].x);
  var highest = vec4f(parts[at + HEAD_QUADS].y);
  for (var chunk = first; chunk < position / CHUNK_KEYS; chunk++) {
    at += stride;
    let known = parts[at + HEAD_QUADS];
    let factors = fold_of(highest, vec4f(known.y));
    sum = fold(sum, factors.keep, parts[at + index % HEAD_QUADS], factors.add);
    total = fold(total, factors.keep, vec4f(known.x), factors.add);
    highest = max(highest, vec4f(known.y));
  }
  result[index] = sum / total;
}
