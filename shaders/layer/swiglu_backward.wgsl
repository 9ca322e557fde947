// Gradient of silu(gate) * up: up_grad = g silu(gate), gate_grad = g up s (1 + gate (1 - s)), s = sigmoid(gate).
// gate_up and gate_up_grad [rows, 2 width] = [gate | up], out_grad [rows, width], which becomes silu(gate) * up by the steps of
// layer/swiglu.wgsl. Grid: a thread per vec4 of out_grad.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out_grad: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> gate_up_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(place: Quad) {
  let at = place.index + place.row * place.quads;
  let gate = gate_up[at];
  let up = gate_up[at + place.quads];
  let sigmoid = 1.0 / (1.0 + exp(-gate));
  let grad = out_grad[place.index];
  gate_up_grad[at] = grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
  gate_up_grad[at + place.quads] = grad * gate * sigmoid;
  out_grad[place.index] = gate / (1.0 + exp(-gate)) * up;
}
