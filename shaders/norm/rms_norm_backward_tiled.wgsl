// rms_norm_backward for wide rows on GPUs: the same bindings, params and results. The threads of a row read neighbouring vec4s.
// Grid: a workgroup per row.

//#include "norm/parts/backward.wgsl"
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
  let r = inverse_rms[row];
  var products = vec4f();
  for (var q = lane; q < quads; q += THREADS) {
    products += y_grad[y_at + q] * (WEIGHT_OFFSET + weight[q]) * x[x_at + q];
  }
  sum_threads(lane, dot(products, vec4f(1.0)));
  workgroupBarrier();
  let pull = shared_sums[0] * r * r / f32(params.width);
  for (var q = lane; q < quads; q += THREADS) {
    var value = r * (y_grad[y_at + q] * (WEIGHT_OFFSET + weight[q]) - x[x_at + q] * pull);
    if (params.accumulate != 0u) {
      value += x_grad[x_at + q];
    }
    x_grad[x_at + q] = value;
  }
}
