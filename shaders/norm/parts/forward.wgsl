// Parameters and buffers of an RMSNorm.
//#include "norm/parts/rows.wgsl"

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

// r of a row, by the sum of its squares.
fn inverse_of(squares: f32) -> f32 {
  return 1.0 / sqrt(squares / f32(params.width) + params.epsilon);
}
