// table_grad[rows[u], :] += sum over i in [offsets[u], offsets[u+1]) of out_grad[positions[i], :].
// rows [U] distinct, offsets [U+1], positions [T]: one writer per row of the table, so no atomics.
// `table_grad` binds rows [first_row, first_row + row_count).
// Grid: a thread per (u, vec4).
//#include "parts/threads.wgsl"

struct Params {
  rows: u32,
  width: u32,
  first_row: u32,
  row_count: u32,
}

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> table_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  let index = thread_index(thread);
  let quads = params.width / 4u;
  if (index >= params.rows * quads) {
    return;
  }
  let group_row = index / quads;
  let quad = index - group_row * quads;
  // Below the window the difference wraps to a large number.
  let row = rows[group_row] - params.first_row;
  if (row >= params.row_count) {
    return;
  }
  let end = offsets[group_row + 1u];
  var sum = vec4f();
  for (var i = offsets[group_row]; i < end; i++) {
    sum += out_grad[positions[i] * quads + quad];
  }
  table_grad[row * quads + quad] += sum;
}
