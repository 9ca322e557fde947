// C = alpha A B (+ addend), for CPU drivers without subgroups of 8 lanes: register tiles, no barriers.
//
// A [m, k] by the strides (a_row, a_k). B [k, n] and C [m, n] row-major, in vec4. A thread owns 8 rows and 4 columns
// of two vec4s. Sums enter and leave one row at a time, as in matmul/parts/lanes.
// Grid: x = column blocks of 64, y = row blocks of 8.

//#include "matmul/parts/product.wgsl"

alias A = f32;
alias B = vec4f;
alias C = vec4f;

const THREADS = 8u;
const ROWS = 8u;
const C_WIDTH = 4u;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let columns = params.n / 4u;
  let column = (block.x * THREADS + thread) * 2u;
  let row0 = block.y * ROWS;
  let last = params.m - 1u;
  var a0 = params.a_offset + min(row0 + 0u, last) * params.a_row;
  var a1 = params.a_offset + min(row0 + 1u, last) * params.a_row;
  var a2 = params.a_offset + min(row0 + 2u, last) * params.a_row;
  var a3 = params.a_offset + min(row0 + 3u, last) * params.a_row;
  var a4 = params.a_offset + min(row0 + 4u, last) * params.a_row;
  var a5 = params.a_offset + min(row0 + 5u, last) * params.a_row;
  var a6 = params.a_offset + min(row0 + 6u, last) * params.a_row;
  var a7 = params.a_offset + min(row0 + 7u, last) * params.a_row;
  var b0 = params.b_offset / 4u + min(column, columns - 1u);
  let second = min(column + 1u, columns - 1u) - min(column, columns - 1u);
  let bStep = params.b_k / 4u;
  var left0 = vec4f();
  var right0 = vec4f();
  var left1 = vec4f();
  var right1 = vec4f();
  var left2 = vec4f();
  var right2 = vec4f();
  var left3 = vec4f();
  var right3 = vec4f();
  var left4 = vec4f();
  var right4 = vec4f();
  var left5 = vec4f();
  var right5 = vec4f();
  var left6 = vec4f();
  var right6 = vec4f();
  var left7 = vec4f();
  var right7 = vec4f();
  if (continues()) {
    for (var r = 0u; r < hidden(ROWS); r++) {
      left0 = left1;
      right0 = right1;
      left1 = left2;
      right1 = right2;
      left2 = left3;
      right2 = right3;
      left3 = left4;
      right3 = right4;
      left4 = left5;
      right4 = right5;
      left5 = left6;
      right5 = right6;
      left6 = left7;
      right6 = right7;
      let at = (params.c_offset + min(row0 + r, last) * params.c_row) / 4u;
      left7 = c[at + min(column, columns - 1u)];
      right7 = c[at + min(column + 1u, columns - 1u)];
    }
  }
  for (var k = 0u; k < params.k; k++) {
    let bLeft = b[b0];
    let bRight = b[b0 + second];
    b0 += bStep;
    let x0 = a[a0];
    a0 += params.a_k;
    left0 += x0 * bLeft;
    right0 += x0 * bRight;
    let x1 = a[a1];
    a1 += params.a_k;
    left1 += x1 * bLeft;
    right1 += x1 * bRight;
    let x2 = a[a2];
    a2 += params.a_k;
    left2 += x2 * bLeft;
    right2 += x2 * bRight;
    let x3 = a[a3];
    a3 += params.a_k;
    left3 += x3 * bLeft;
    right3 += x3 * bRight;
    let x4 = a[a4];
    a4 += params.a_k;
    left4 += x4 * bLeft;
    right4 += x4 * bRight;
    let x5 = a[a5];
    a5 += params.a_k;
    left5 += x5 * bLeft;
    right5 += x5 * bRight;
    let x6 = a[a6];
    a6 += params.a_k;
    left6 += x6 * bLeft;
    right6 += x6 * bRight;
    let x7 = a[a7];
    a7 += params.a_k;
    left7 += x7 * bLeft;
    right7 += x7 * bRight;
  }
  let rows = min(ROWS, params.m - row0);
  for (var r = 0u; r < rows; r++) {
    if (column < columns) {
      store(row0 + r, column, left0);
    }
    if (column + 1u < columns) {
      store(row0 + r, column + 1u, right0);
    }
    left0 = left1;
    right0 = right1;
    left1 = left2;
    right1 = right2;
    left2 = left3;
    right2 = right3;
    left3 = left4;
    right3 = right4;
    left4 = left5;
    right4 = right5;
    left5 = left6;
    right5 = right6;
    left6 = left7;
    right6 = right7;
  }
}
