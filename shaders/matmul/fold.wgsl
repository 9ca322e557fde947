// C (+)= alpha times the sum of the parts, first to last, that a product was cut into along k.
// sums [parts, rows, width]; C: rows of width, c_row apart. Grid: a thread per vec4 of C.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32, parts: u32, c_offset: u32, c_row: u32, alpha: f32, accumulate: u32 }

@group(0) @binding(0) var<storage, read> sums: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> c: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(place: Quad) {
  var sum = sums[place.index];
  for (var part = 1u; part < params.parts; part++) {
    sum += sums[part * params.rows * place.quads + place.index];
  }
  let at = (params.c_offset + place.row * params.c_row) / 4u + place.column;
  if (params.accumulate != 0u) {
    c[at] = fma(vec4f(params.alpha), sum, c[at]);
  } else {
    c[at] = params.alpha * sum;
  }
}
