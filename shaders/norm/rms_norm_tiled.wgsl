// rms_norm for wide rows on GPUs: the same bindings and params, and squares added in another order, which
// matmul/parts/fused repeats. The threads of a row read neighbouring vec4s.
// Grid: a workgroup per row.

//#include "norm/parts/forward.wgsl"
//#include "parts/groups.wgsl"
//#include "parts/tree.wgsl"

alias Sum = f32;

const THREADS = 64u;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let row = group_index(group);
  if (row >= params.rows) { return; }
  let quads = params.width / 4u;
  let x_at = x_start(row);
  let y_at = y_start(row);
  var squares = vec4f();
  for (var q = lane; q < quads; q += THREADS) {
    let value = x[x_at + q];
    squares = fma(value, value, squares);
  }
  sum_threads(lane, (squares.x + squares.y) + (squares.z + squares.w));
  workgroupBarrier();
  let r = inverse_rms_of(shared_sums[0], params.width, params.epsilon);
  if (lane == 0u) {
    inverse_rms[row] = r;
  }
  for (var q = lane; q < quads; q += THREADS) {
    y[y_at + q] = normalised(x[x_at + q], r, weight[q]);
  }
}
