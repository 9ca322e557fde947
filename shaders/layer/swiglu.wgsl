// result = silu(gate) * up. gate_up [rows, 2 width] = [gate | up], result [rows, width]. Grid: a thread per vec4.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(place: Quad) {
  let at = place.index + place.row * place.quads;
  let gate = gate_up[at];
  result[place.index] = gate / (1.0 + exp(-gate)) * gate_up[at + place.quads];
}
