// matmul/tiled_narrow with B in a packed format.

//#include "matmul/parts/tiled_narrow.wgsl"
//#include "matmul/parts/plain.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_select.wgsl"

alias A = vec4f;
alias C = f32;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}
