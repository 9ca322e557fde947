// partials[b, offset + c] = sum over the rows of block b of y_grad[row, c] * x[row, c] * inverse_rms[row].

//#include "norm/parts/rows.wgsl"
//#include "parts/row_blocks.wgsl"

struct Params {
  rows: u32,
  width: u32,
  per_token: u32,
  x_stride: u32,
  x_offset: u32,
  y_stride: u32,
  y_offset: u32,
  partials_stride: u32,
  partials_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(2) var<storage, read> y_grad: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn row_term(row: u32, quad: u32) -> vec4f {
  return y_grad[y_start(row) + quad] * x[x_start(row) + quad] * inverse_rms[row];
}

fn partials_at(block: u32, quad: u32) -> u32 {
  return (block * params.partials_stride + params.partials_offset) / 4u + quad;
}
