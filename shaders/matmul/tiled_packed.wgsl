// matmul/tiled with B in a packed format.

//#include "matmul/parts/tiled.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_select.wgsl"

alias A = f32;
alias C = f32;

fn read_b(at: u32) -> f32 {
  return packed_value(at);
}
