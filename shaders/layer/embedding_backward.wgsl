// table_grad[rows[u], :] += sum over i in [offsets[u], offsets[u+1]) of out_grad[positions[i], :].
// rows [U] distinct, offsets [U+1], positions [T]: one writer per row of the table, so no atomics.
// `table_grad` binds rows [first_row, first_row + row_count).
// Grid: a thread per (u, vec4).

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32, first_row: u32, row_count: u32 }

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> table_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  // Below the window the difference wraps to a large number.
  let row = rows[at.row] - params.first_row;
  if (row >= params.row_count) { return; }
  let end = offsets[at.row + 1u];
  var sum = vec4f();
  for (var i = offsets[at.row]; i < end; i++) {
    sum += out_grad[positions[i] * at.quads + at.column];
  }
  table_grad[row * at.quads + at.column] += sum;
}
