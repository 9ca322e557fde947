// result = gelu(gate) * up, gelu(g) = g / (1 + exp(-2 sqrt(2 / pi) (g + 0.044715 g^3))): the form with tanh, without its
// overflow. gate_up [rows, 2 width] = [gate | up], result [rows, width]. Grid: a thread per vec4.
// https://arxiv.org/abs/1606.08415

//#include "parts/quads.wgsl"
//#include "layer/parts/gelu.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(place: Quad) {
  let at = place.index + place.row * place.quads;
  let gate = gate_up[at];
  result[place.index] = gate * share(gate) * gate_up[at + place.quads];
}
