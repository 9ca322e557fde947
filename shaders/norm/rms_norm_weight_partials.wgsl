// partials[b, offset + c] = sum over the rows of block b of y_grad[row, c] * x[row, c] * inverse_rms[row].
// The number of row blocks is fixed, so that sums repeat bit for bit. column_sum adds the blocks.
// Grid: a thread per (block, vec4 of columns).

//#include "norm/parts/rows.wgsl"
//#include "parts/threads.wgsl"

override BLOCKS: u32 = 64u;

struct Params {
  rows: u32,
  width: u32,
  per_token: u32,
  x_stride: u32,
  x_offset: u32,
  y_stride: u32,
  y_offset: u32,
  partials_stride: u32,
  partials_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(2) var<storage, read> y_grad: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4f>;
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
    let x_at = x_start(row) + quad;
    let y_at = y_start(row) + quad;
    sum += y_grad[y_at] * x[x_at] * inverse_rms[row];
  }
  partials[(block * params.partials_stride + params.partials_offset) / 4u + quad] = sum;
}
