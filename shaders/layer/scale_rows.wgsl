// x[r, c] *= factors[r], in place, c < width. Grid: a thread per vec4.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) { x[at.index] *= factors[at.row]; }
