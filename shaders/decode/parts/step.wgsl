// Parameters and buffers of a decoding step's attention, with what turns q and k.

//#include "decode/parts/pages.wgsl"
//#include "decode/parts/window.wgsl"

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  row_pages: u32,
  shift: u32,
  window: u32,
  rotates: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(1) var<storage, read> angles: array<vec4f>;
@group(0) @binding(2) var<storage, read> pages: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> keys: array<CachedQuad>;
@group(0) @binding(5) var<storage, read_write> values: array<CachedQuad>;
@group(0) @binding(6) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

struct Halves { low: vec4f, high: vec4f }

fn turn(x: Halves, cosine: vec4f, sine: vec4f) -> Halves {
  if (params.rotates == 0u) { return x; }
  return Halves(fma(x.low, cosine, -(x.high * sine)), fma(x.high, cosine, x.low * sine));
}
