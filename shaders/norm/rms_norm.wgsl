// y = x * r * weight, r = inverseSqrt(mean(x^2) + epsilon), per row of width C; r is kept for the gradient.
// x and y: rows inside wider buffers. weight [C], inverse_rms [rows].
// Grid: a thread per row. https://arxiv.org/abs/1910.07467
//#include "parts/threads.wgsl"

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

// First vec4 of a row: `per_token` rows lie side by side in each token's stretch of `stride` elements.
fn row_start(row: u32, stride: u32, offset: u32) -> u32 {
  let token = row / params.per_token;
  return (token * stride + offset + (row - token * params.per_token) * params.width) / 4u;
}

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  let index = thread_index(thread);
  if (index >= params.rows) {
    return;
  }
  let quads = params.width / 4u;
  let x_start = row_start(index, params.x_stride, params.x_offset);
  let y_start = row_start(index, params.y_stride, params.y_offset);
  var squares = vec4f();
  for (var q = 0u; q < quads; q++) {
    let value = x[x_start + q];
    squares += value * value;
  }
  let mean = dot(squares, vec4f(1.0)) / f32(params.width);
  let r = 1.0 / sqrt(mean + params.epsilon);
  inverse_rms[index] = r;
  for (var q = 0u; q < quads; q++) {
    y[y_start + q] = x[x_start + q] * r * weight[q];
  }
}
