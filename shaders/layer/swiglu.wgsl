// result = silu(gate) * up. gate_up [rows, 2 width] = [gate | up], result [rows, width]. Grid: a thread per vec4.

//#include "parts/elements.wgsl"

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4f>;
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
  result[place.index] = gate / (1.0 + exp(-gate)) * gate_up[at + quads];
}
