// Gradient of gelu(gate) * up: up_grad = g gelu(gate), gate_grad = g up (s + gate s (1 - s) SLOPE (1 + 3 CUBIC gate^2)),
// s = gelu(gate) / gate. gate_up and gate_up_grad [rows, 2 width] = [gate | up], out_grad [rows, width],
// which becomes gelu(gate) * up by the steps of layer/geglu.wgsl. Grid: a thread per vec4 of out_grad.

//#include "parts/quads.wgsl"
//#include "layer/parts/gelu.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out_grad: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> gate_up_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(place: Quad) {
  let at = place.index + place.row * place.quads;
  let gate = gate_up[at];
  let s = share(gate);
  // The product with 1 - s first: it is 0 where the square is large.
  let slope = s + gate * s * (1.0 - s) * (SLOPE * (1.0 + 3.0 * CUBIC * gate * gate));
  let up = gate_up[at + place.quads];
  let grad = out_grad[place.index];
  gate_up_grad[at] = grad * up * slope;
  gate_up_grad[at + place.quads] = grad * gate * s;
  out_grad[place.index] = gate * s * up;
}
