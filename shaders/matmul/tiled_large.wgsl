// C = alpha A B (+ addend) for many rows and columns, for GPUs: tiles in registers, staged in workgroup memory.
//
// A [m, k] along k (a_k = 1) or along m (a_row = 1), B [k, n] along n (b_column = 1) or along k (b_k = 1), C [m, n] row-major,
// all in vec4. A workgroup computes a tile of ROWS x 64, each thread 8 x 8 of it: 4 vec4 of workgroup memory are read
// for 64 multiply-adds, where matmul/tiled reads 8 values for 16. Steps of 8 over k are staged in two buffers in turn, so that
// one barrier a step suffices and the next step is on its way while this one is multiplied. Beyond the edges zeros are
// staged. Sums are those of matmul/tiled, expression by expression, and so are the bits.
// Grid: x = column tiles, y = row tiles.

//#include "matmul/parts/tiled_large.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
