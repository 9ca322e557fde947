// matmul/tiled_few_fused with B in a packed format.

//#include "matmul/parts/tiled_few.wgsl"
//#include "matmul/parts/fused.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_select.wgsl"

alias A = vec4f;
alias C = f32;

@group(0) @binding(5) var<storage, read> norm_weight: array<vec4f>;
@group(0) @binding(6) var<storage, read> low: array<vec4f>;
@group(0) @binding(7) var<storage, read> factor: array<vec4f>;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}
