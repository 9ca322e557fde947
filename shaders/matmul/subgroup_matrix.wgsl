// C = alpha A B (+ addend) on the matrix units of a GPU's subgroups of 32 lanes: f16 inputs, f32 sums.
//
// A [m, k] comes from matmul/halves, B [k, n] as f32 in vec4 along n or along k, C [m, n] row-major, of any size. Rows of A and
// columns of B are multiplied by powers of two (parts/powers.wgsl) that are taken out of the sums again. A workgroup of 8
// subgroups computes a tile of 128 x 128. Steps of 16 along k: blocks of A are loaded from memory, B is converted into one of two
// buffers in turn, so that one barrier a step suffices and the next step is on its way while this one is multiplied. Results go
// through workgroup memory, because only there a thread knows which elements it holds.
// The bits of a row of C depend on A's row and on B, not on the other rows; they are not those of the kernels in f32.
// Grid: x = column tiles, y = row tiles.

enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

//#include "matmul/parts/subgroup_matrix.wgsl"
//#include "parts/matrix_units_f16.wgsl"

alias A = Element;
alias B = vec4f;
alias C = f32;

@group(0) @binding(4) var<storage, read> row_magnitudes: array<u32>;
@group(0) @binding(5) var<storage, read> column_magnitudes: array<u32>;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
