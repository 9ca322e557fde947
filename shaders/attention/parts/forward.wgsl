// Parameters and further buffers of attention.

//#include "attention/parts/heads.wgsl"
//#include "attention/parts/first_key.wgsl"

struct Params {
  tokens: u32,
  heads: u32,
  key_heads: u32,
  window: u32,
  // Keys before the first query's own: of tokens that have no query here.
  first: u32,
  q_stride: u32,
  q_offset: u32,
  k_stride: u32,
  k_offset: u32,
  v_stride: u32,
  v_offset: u32,
  scale: f32,
}

@group(0) @binding(3) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> statistics: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

// A block of queries by the places of their keys.
fn among_keys(block: Block) -> Block {
  return Block(block.head, block.first + params.first, block.last + params.first);
}

// Heads of the grid: of queries or of keys.
fn grid_heads() -> u32 {
  return params.heads;
}
