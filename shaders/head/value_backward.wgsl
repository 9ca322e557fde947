// x_grad[row, c] = value_grads[row] * weight[c]: the gradient of a scalar head in its input. x_grad [rows, C], weight [C].
// Grid: a thread per vec4 of x_grad.

//#include "parts/threads.wgsl"

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> weight: array<vec4f>;
@group(0) @binding(1) var<storage, read> value_grads: array<f32>;
@group(0) @binding(2) var<storage, read_write> x_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= params.rows * quads) { return; }
  let row = index / quads;
  x_grad[index] = value_grads[row] * weight[index - row * quads];
}
