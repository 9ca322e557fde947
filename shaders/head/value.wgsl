// values[row] = x[row, :] . weight, per row of width C: a scalar head. x [rows, C], weight [C], values [rows].
// Grid: a thread per row; the sum runs along the row in order, so that a row's bits do not depend on the others.

//#include "parts/rows.wgsl"

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> weight: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_row(row: u32) {
  let quads = params.width / 4u;
  let start = row * quads;
  var sum = vec4f();
  for (var q = 0u; q < quads; q++) {
    sum += x[start + q] * weight[q];
  }
  values[row] = dot(sum, vec4f(1.0));
}
