// Parameters and further buffers of the gradients in k and v.

//#include "attention/parts/heads.wgsl"

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
  dk_stride: u32,
  dk_offset: u32,
  dv_stride: u32,
  dv_offset: u32,
  scale: f32,
}

@group(0) @binding(3) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read> sequence_end: array<u32>;
@group(0) @binding(5) var<storage, read> statistics: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> key_value_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn dk_start(token: u32, key_head: u32) -> u32 {
  return (token * params.dk_stride + params.dk_offset) / 4u + key_head * HEAD_QUADS;
}

fn dv_start(token: u32, key_head: u32) -> u32 {
  return (token * params.dv_stride + params.dv_offset) / 4u + key_head * HEAD_QUADS;
}

// One past the last query that attends to a key.
fn queries_end(token: u32) -> u32 {
  return token + min(sequence_end[token] - token, params.window);
}

// Heads of the grid: of queries or of keys.
fn grid_heads() -> u32 {
  return params.key_heads;
}
