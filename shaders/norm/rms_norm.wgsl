// y = x * r * (WEIGHT_OFFSET + weight), r = inverseSqrt(mean(x^2) + epsilon), per row of width C; r is kept for the gradient.
// x and y: rows inside wider buffers. weight [C], inverse_rms [rows].
// Grid: a thread per row. https://arxiv.org/abs/1910.07467

//#include "norm/parts/rows.wgsl"
//#include "parts/rows.wgsl"

// 1 where the model stores weights less one.
override WEIGHT_OFFSET: f32 = 0.0;

struct Params {
  rows: u32,
  width: u32,
  per_token: u32,
  x_stride: u32,
  x_offset: u32,
  y_stride: u32,
  y_offset: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> weight: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_row(index: u32) {
  let quads = params.width / 4u;
  let x_at = x_start(index);
  let y_at = y_start(index);
  var squares = vec4f();
  for (var q = 0u; q < quads; q++) {
    let value = x[x_at + q];
    squares += value * value;
  }
  let mean = dot(squares, vec4f(1.0)) / f32(params.width);
  let r = 1.0 / sqrt(mean + params.epsilon);
  inverse_rms[index] = r;
  for (var q = 0u; q < quads; q++) {
    y[y_at + q] = x[x_at + q] * r * (WEIGHT_OFFSET + weight[q]);
  }
}
