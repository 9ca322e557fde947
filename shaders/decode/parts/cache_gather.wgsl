// Takes each row's k and v from its place in the cache. The header of decode/cache_gather.wgsl has the formula.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> places: array<u32>;
@group(0) @binding(1) var<storage, read> keys: array<CachedQuad>;
@group(0) @binding(2) var<storage, read> values: array<CachedQuad>;
@group(0) @binding(3) var<storage, read_write> k: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> v: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  let source = places[at.row] * at.quads + at.column;
  let to = at.row * at.quads + at.column;
  k[to] = kept_quad(keys[source]);
  v[to] = kept_quad(values[source]);
}
