// Parameters and further buffers of the gradient in q.

//#include "attention/parts/heads.wgsl"
//#include "attention/parts/first_key.wgsl"

struct Params {
  tokens: u32,
  heads: u32,
  key_heads: u32,
  window: u32,
  q_stride: u32,
  q_offset: u32,
  k_stride: u32,
  k_offset: u32,
  v_stride: u32,
  v_offset: u32,
  grad_stride: u32,
  grad_offset: u32,
  scale: f32,
}

@group(0) @binding(3) var<storage, read> out: array<vec4f>;
@group(0) @binding(4) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(5) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(6) var<storage, read_write> statistics: array<f32>;
@group(0) @binding(7) var<storage, read_write> q_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn grad_start(token: u32, head: u32) -> u32 {
  return (token * params.grad_stride + params.grad_offset) / 4u + head * HEAD_QUADS;
}

// Heads of the grid: of queries or of keys.
fn grid_heads() -> u32 {
  return params.heads;
}
