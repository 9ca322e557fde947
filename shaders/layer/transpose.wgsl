// y[c, r] = x[r, c]. x [rows, columns], y [columns, rows], each from its offset on, rows a stride apart.
// Grid: a thread per (four rows, column): lanes read side by side, and write runs of four.

//#include "parts/threads.wgsl"

struct Params { rows: u32, columns: u32, x_offset: u32, x_stride: u32, y_offset: u32, y_stride: u32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let column = index % params.columns;
  let row = index / params.columns * 4u;
  let end = min(row + 4u, params.rows);
  for (var r = row; r < end; r++) {
    y[params.y_offset + column * params.y_stride + r] = x[params.x_offset + r * params.x_stride + column];
  }
}
