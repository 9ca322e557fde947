// C = alpha A B (+ addend), any orientation and any size, without barriers: the odd shapes on CPU drivers.
//
// A [m, k] by the strides (a_row, a_k), B [k, n] by (b_k, b_column), C [m, n] row-major. A thread owns 4 rows and one
// column.
// Grid: x = column blocks of 8, y = row blocks of 4, folded over z above 65,535 of them.

//#include "matmul/parts/product.wgsl"

alias A = f32;
alias B = f32;
alias C = f32;

const THREADS = 8u;
const ROWS = 4u;
const C_WIDTH = 1u;

@compute @workgroup_size(8)
fn main(
  @builtin(workgroup_id) block: vec3u,
  @builtin(num_workgroups) blocks: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let column = block.x * THREADS + thread;
  let row0 = (block.z * blocks.y + block.y) * ROWS;
  if (column >= params.n || row0 >= params.m) { return; }
  let last = params.m - 1u;
  let rows = min(vec4u(row0, row0 + 1u, row0 + 2u, row0 + 3u), vec4u(last));
  var aAt = vec4u(params.a_offset) + rows * params.a_row;
  var bAt = params.b_offset + column * params.b_column;
  var sum = vec4f();
  if (continues()) {
    let at = vec4u(params.c_offset + column) + rows * params.c_row;
    sum = vec4f(c[at.x], c[at.y], c[at.z], c[at.w]);
  }
  for (var k = 0u; k < params.k; k++) {
    sum += vec4f(a[aAt.x], a[aAt.y], a[aAt.z], a[aAt.w]) * b[bAt];
    aAt += vec4u(params.a_k);
    bAt += params.b_k;
  }
  for (var r = 0u; r < min(ROWS, params.m - row0); r++) {
    store(row0 + r, column, sum[r]);
  }
}
