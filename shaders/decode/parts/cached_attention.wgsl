// Parameters and buffers of the attention of one new query per row over its slot of the cache.

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  max_length: u32,
  shift: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> keys: array<vec4f>;
@group(0) @binding(2) var<storage, read> values: array<vec4f>;
@group(0) @binding(3) var<storage, read> slots: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

// Keys that the row sees.
fn length_of(row: u32) -> u32 {
  return min(positions[row] + params.shift + 1u, params.max_length);
}

// The first vec4 of the row's first key, for a query head.
fn cache_start(row: u32, head: u32) -> u32 {
  let stride = params.key_heads * HEAD_QUADS;
  return slots[row] * params.max_length * stride + head * params.key_heads / params.heads * HEAD_QUADS;
}

fn q_start(row: u32, head: u32) -> u32 {
  return (row * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
}
