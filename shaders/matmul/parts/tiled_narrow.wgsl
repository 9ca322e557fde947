// The work of matmul/tiled_narrow, by a kernel that includes plain or fused and defines read_b(at), the vec4 at 4 at.

//#include "matmul/parts/results.wgsl"
//#include "matmul/parts/gated.wgsl"

const ROWS = 16u;
const COLUMNS = 32u;
const C_WIDTH = 1u;
// Quads of k that are staged at once, and those of a step of matmul/tiled.
const STEP = 16u;
const ROUND = 4u;
// Padded by one against bank conflicts.
const STRIDE = STEP + 1u;
// Rows or columns that the 128 threads stage at a time.
const STAGED = 8u;

var<workgroup> a_tile: array<vec4f, ROWS * STRIDE>;
var<workgroup> b_tile: array<vec4f, COLUMNS * STRIDE>;

// Of the block's rows from row0 on.
fn a_quad(row0: u32, local_row: u32, quad: u32) -> vec4f {
  let row = row0 + local_row;
  let isInside = row < params.m && quad < params.k / 4u;
  let at = (params.a_offset + row * params.a_row) / 4u + quad;
  return select(vec4f(), read_a(local_row, quad, select(0u, at, isInside)), isInside);
}

fn b_quad(column: u32, quad: u32) -> vec4f {
  let isInside = column < params.n && quad < params.k / 4u;
  let at = (params.b_offset + column * params.b_column) / 4u + quad;
  return select(vec4f(), read_b(select(0u, at, isInside)), isInside);
}

fn added(sum: f32, x: vec4f, y: vec4f) -> f32 {
  return fma(x[3], y[3], fma(x[2], y[2], fma(x[1], y[1], fma(x[0], y[0], sum))));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row0 = block.y * ROWS;
  // Columns of C that a thread stores in a row.
  let stored = select(2u, 1u, OUTPUT == SWIGLU);
  let column0 = block.x * 16u * stored;
  // The thread's part of what is staged.
  let line = thread / STEP;
  let place = thread % STEP;
  // Its sums: rows y and y + 8, columns x and x + 16, row by row.
  let y = thread / 16u;
  let x = thread % 16u;
  var sums = vec4f();
  let count = hidden(4u);
  if (continues()) {
    for (var i = 0u; i < count; i++) {
      let row = min(row0 + y + i / 2u * 8u, params.m - 1u);
      let column = min(column0 + x + i % 2u * 16u, params.n - 1u);
      sums = vec4f(sums.yzw, c[params.c_offset + row * params.c_row + column]);
    }
  }
  prepare_rows(row0, thread);
  let quads = params.k / 4u;
  let steps = (quads + STEP - 1u) / STEP;
  var a0: vec4f;
  var a1: vec4f;
  var b0: vec4f;
  var b1: vec4f;
  var b2: vec4f;
  var b3: vec4f;
  for (var step = 0u; step <= steps; step++) {
    if (step < steps) {
      let quad = step * STEP + place;
      a0 = a_quad(row0, line, quad);
      a1 = a_quad(row0, line + STAGED, quad);
      b0 = b_quad(column_of_b(block.x, line), quad);
      b1 = b_quad(column_of_b(block.x, line + STAGED), quad);
      b2 = b_quad(column_of_b(block.x, line + 2u * STAGED), quad);
      b3 = b_quad(column_of_b(block.x, line + 3u * STAGED), quad);
    }
    if (step > 0u) {
      // Whole steps of matmul/tiled: zeros are added where it adds them.
      let staged = min(STEP, quads - (step - 1u) * STEP);
      for (var first = 0u; first < staged; first += ROUND) {
        for (var k = first; k < first + ROUND; k++) {
          let low = a_tile[y * STRIDE + k];
          let high = a_tile[(y + 8u) * STRIDE + k];
          let left = b_tile[x * STRIDE + k];
          let right = b_tile[(x + 16u) * STRIDE + k];
          sums = vec4f(
            added(sums.x, low, left),
            added(sums.y, low, right),
            added(sums.z, high, left),
            added(sums.w, high, right),
          );
        }
      }
    }
    workgroupBarrier();
    if (step < steps) {
      let at = line * STRIDE + place;
      a_tile[at] = a0;
      a_tile[at + STAGED * STRIDE] = a1;
      b_tile[at] = b0;
      b_tile[at + STAGED * STRIDE] = b1;
      b_tile[at + 2u * STAGED * STRIDE] = b2;
      b_tile[at + 3u * STAGED * STRIDE] = b3;
    }
    workgroupBarrier();
  }
  var columns = params.n;
  if (OUTPUT == SWIGLU) {
    columns = params.n / 2u;
    for (var i = 0u; i < count; i++) {
      let column = column_of_b(block.x, x + i % 2u * 16u);
      sums = vec4f(sums.yzw, with_adapter(sums.x, min(row0 + y + i / 2u * 8u, params.m - 1u), min(column, params.n - 1u)));
    }
    sums = vec4f(swiglu(sums.x, sums.y), swiglu(sums.z, sums.w), 0.0, 0.0);
  }
  for (var i = 0u; i < hidden(2u * stored); i++) {
    let row = row0 + y + i / stored * 8u;
    let column = column0 + x + i % stored * 16u;
    if (row < params.m && column < columns) {
      if (OUTPUT == SWIGLU) {
        store(row, column, sums.x);
      } else {
        store_adapted(row, column, sums.x);
      }
    }
    sums = vec4f(sums.yzw, 0.0);
  }
}
