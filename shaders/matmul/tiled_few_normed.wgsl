// matmul/tiled_few of the RMSNorm of A's rows, width k: a decoding step saves the norm's dispatch. C = norm(A) B (+ addend).

//#include "matmul/parts/tiled_few.wgsl"
//#include "matmul/parts/normed_rows.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = f32;

@group(0) @binding(4) var<storage, read> norm_weight: array<vec4f>;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
