// matmul/tiled_narrow with the kernels around it, which saves a decoding step their dispatches: the RMSNorm of A's rows, an adapter's
// product, SwiGLU. C = g(norm(A) B + scale low factor^T (+ addend)).

//#include "matmul/parts/tiled_narrow.wgsl"
//#include "matmul/parts/fused.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = f32;

@group(0) @binding(4) var<storage, read> norm_weight: array<vec4f>;
@group(0) @binding(5) var<storage, read> low: array<vec4f>;
@group(0) @binding(6) var<storage, read> factor: array<vec4f>;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
