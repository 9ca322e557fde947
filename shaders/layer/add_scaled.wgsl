// y[r, y_offset + c] (+)= scale * x[r, x_offset + c], c < width. Grid: a thread per vec4.

//#include "parts/quads.wgsl"

struct Params {
  rows: u32,
  width: u32,
  x_stride: u32,
  x_offset: u32,
  y_stride: u32,
  y_offset: u32,
  scale: f32,
  accumulate: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  let to = (at.row * params.y_stride + params.y_offset) / 4u + at.column;
  var value = params.scale * x[(at.row * params.x_stride + params.x_offset) / 4u + at.column];
  if (params.accumulate != 0u) {
    value += y[to];
  }
  y[to] = value;
}
