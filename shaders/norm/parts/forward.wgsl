// Parameters and buffers of an RMSNorm.
//#include "norm/parts/row.wgsl"
//#include "norm/parts/rows.wgsl"

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
