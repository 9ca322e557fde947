// partials[b, c] = sum over the rows of block b of x[row, c]; column_sum adds the blocks. x [rows, width].
// The number of row blocks is fixed, so that sums repeat bit for bit. Grid: a thread per (block, vec4 of columns).

//#include "parts/threads.wgsl"

override BLOCKS: u32 = 64u;

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> partials: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= BLOCKS * quads) { return; }
  let block = index / quads;
  let quad = index - block * quads;
  let per_block = (params.rows + BLOCKS - 1u) / BLOCKS;
  let end = min((block + 1u) * per_block, params.rows);
  var sum = vec4f();
  for (var row = block * per_block; row < end; row++) {
    sum += x[row * quads + quad];
  }
  partials[index] = sum;
}
