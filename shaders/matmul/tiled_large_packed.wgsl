// matmul/tiled_large with B in a packed format.

//#include "matmul/parts/tiled_large.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_select.wgsl"

alias A = vec4f;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}
