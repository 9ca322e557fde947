// matmul/subgroup_matrix with B in a packed format.

enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

//#include "matmul/parts/subgroup_matrix.wgsl"
//#include "parts/matrix_units_f16.wgsl"
//#include "matmul/parts/packed_b.wgsl"
//#include "parts/nf4_select.wgsl"

alias A = Element;
alias C = f32;

@group(0) @binding(5) var<storage, read> row_magnitudes: array<u32>;
@group(0) @binding(6) var<storage, read> column_magnitudes: array<u32>;

fn read_b(at: u32) -> vec4f {
  return packed_quad(at);
}
