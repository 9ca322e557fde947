// Parameters and buffers of the attention of one new query per row over its pages of the cache.

//#include "decode/parts/pages.wgsl"
//#include "decode/parts/window.wgsl"

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  row_pages: u32,
  shift: u32,
  window: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> keys: array<CachedQuad>;
@group(0) @binding(2) var<storage, read> values: array<CachedQuad>;
@group(0) @binding(3) var<storage, read> pages: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn q_start(row: u32, head: u32) -> u32 {
  return (row * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
}
