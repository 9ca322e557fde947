// matmul/subgroup_matrix for matrix units that multiply f32: A comes from matmul/blocks.

enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

//#include "matmul/parts/subgroup_matrix.wgsl"
//#include "parts/matrix_units_f32.wgsl"

alias A = Element;
alias B = vec4f;
alias C = f32;

@group(0) @binding(4) var<storage, read> row_magnitudes: array<u32>;
@group(0) @binding(5) var<storage, read> column_magnitudes: array<u32>;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
