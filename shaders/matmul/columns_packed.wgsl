// matmul/columns with B in a packed format.

enable subgroups;

//#include "matmul/parts/columns.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_shuffle.wgsl"

alias A = vec4f;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}

fn start_reading(lane: u32) {
  hold_levels(lane);
}
