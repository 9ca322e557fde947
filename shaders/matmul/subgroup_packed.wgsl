// matmul/subgroup with B in a packed format.

enable subgroups;

//#include "matmul/parts/subgroup.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_shuffle.wgsl"

alias A = f32;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}

fn start_reading(lane: u32) {
  hold_levels(lane);
}
