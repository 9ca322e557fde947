// y = x * r * (WEIGHT_OFFSET + weight), r = inverseSqrt(mean(x^2) + epsilon), per row of width C; r is kept for the gradient.
// x and y: rows inside wider buffers. weight [C], inverse_rms [rows].
// Grid: a thread per row. https://arxiv.org/abs/1910.07467

//#include "norm/parts/forward.wgsl"
//#include "parts/rows.wgsl"

fn compute_row(index: u32) {
  let quads = params.width / 4u;
  let x_at = x_start(index);
  let y_at = y_start(index);
  var squares = vec4f();
  for (var q = 0u; q < quads; q++) {
    let value = x[x_at + q];
    squares += value * value;
  }
  let r = inverse_rms_of(dot(squares, vec4f(1.0)), params.width, params.epsilon);
  inverse_rms[index] = r;
  for (var q = 0u; q < quads; q++) {
    y[y_at + q] = normalised(x[x_at + q], r, weight[q]);
  }
}
