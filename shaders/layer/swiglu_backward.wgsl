// Gradient of silu(gate) * up: up_grad = g silu(gate), gate_grad = g up s (1 + gate (1 - s)), s = sigmoid(gate).
// gate_up and gate_up_grad [rows, 2 width] = [gate | up], out_grad [rows, width]. Grid: a thread per vec4 of out_grad.

//#include "parts/elements.wgsl"

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> gate_up_grad: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  let quads = params.width / 4u;
  let place = element_of(thread, quads);
  if (place.row >= params.rows) {
    return;
  }
  let at = place.index + place.row * quads;
  let gate = gate_up[at];
  let sigmoid = 1.0 / (1.0 + exp(-gate));
  let grad = out_grad[place.index];
  gate_up_grad[at] = grad * gate_up[at + quads] * sigmoid * (1.0 + gate * (1.0 - sigmoid));
  gate_up_grad[at + quads] = grad * gate * sigmoid;
}
