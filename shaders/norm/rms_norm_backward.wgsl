// x_grad (+)= r (g - x r^2 mean(g x)), g = y_grad * (WEIGHT_OFFSET + weight); r = inverse_rms of the row.
// x_grad lies as x. Grid: a thread per row.

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
  accumulate: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> weight: array<vec4f>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> y_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> x_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

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
