// partials[b, c] = sum over the rows of block b of a term of each row: `row_term(row, quad)`, which the kernel has, for the vec4
// of columns `quad`; `partials_at(block, quad)` is its place. The number of row blocks is fixed, so that sums repeat bit for
// bit; column_sum adds the blocks.
// Grid: a thread per (block, vec4 of columns).

//#include "parts/threads.wgsl"

override BLOCKS: u32 = 64u;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= BLOCKS * quads) { return; }
  let block = index / quads;
  let quad = index - block * quads;
  let per_block = (params.rows + BLOCKS - 1u) / BLOCKS;
  let end = min((block + 1u) * per_block, params.rows);
  var sum = vec4f();
  for (var row = block * per_block; row < end; row++) { sum += row_term(row, quad); }
  partials[partials_at(block, quad)] = sum;
}
