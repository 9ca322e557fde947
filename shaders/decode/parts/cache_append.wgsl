// Keeps k and v of each row at its place in the cache. The header of decode/cache_append.wgsl has the formula.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32, k_stride: u32, k_offset: u32, v_stride: u32, v_offset: u32 }

@group(0) @binding(0) var<storage, read> k: array<vec4f>;
@group(0) @binding(1) var<storage, read> v: array<vec4f>;
@group(0) @binding(2) var<storage, read> places: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys: array<CachedQuad>;
@group(0) @binding(4) var<storage, read_write> values: array<CachedQuad>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  let to = places[at.row] * at.quads + at.column;
  keys[to] = keep_quad(k[(at.row * params.k_stride + params.k_offset) / 4u + at.column]);
  values[to] = keep_quad(v[(at.row * params.v_stride + params.v_offset) / 4u + at.column]);
}
