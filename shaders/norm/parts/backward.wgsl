// Parameters and buffers of the gradient of an RMSNorm.
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
  accumulate: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> weight: array<vec4f>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> y_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> x_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;
