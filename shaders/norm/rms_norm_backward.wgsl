// x_grad (+)= r (g - x r^2 mean(g x)), g = y_grad * (WEIGHT_OFFSET + weight); r = inverse_rms of the row.
// x_grad lies as x. Grid: a thread per row.

//#include "norm/parts/backward.wgsl"
//#include "parts/rows.wgsl"

fn compute_row(index: u32) {
  let quads = params.width / 4u;
  let x_at = x_start(index);
  let y_at = y_start(index);
  let r = inverse_rms[index];
  var products = vec4f();
  for (var q = 0u; q < quads; q++) {
    products += y_grad[y_at + q] * (WEIGHT_OFFSET + weight[q]) * x[x_at + q];
  }
  let pull = dot(products, vec4f(1.0)) * r * r / f32(params.width);
  for (var q = 0u; q < quads; q++) {
    var value = r * (y_grad[y_at + q] * (WEIGHT_OFFSET + weight[q]) - x[x_at + q] * pull);
    if (params.accumulate != 0u) {
      value += x_grad[x_at + q];
    }
    x_grad[x_at + q] = value;
  }
}
