// C = alpha A B (+ addend), any orientation and any size, for GPUs: tiles staged in workgroup memory.
//
// A [m, k] by the strides (a_row, a_k), B [k, n] by (b_k, b_column), C [m, n] row-major. A workgroup of 16 x 16 threads
// computes a 64 x 64 tile in steps of 16 over k; each thread a 4 x 4 piece of it. Beyond the edges zeros are staged.
// Grid: x = column tiles, y = row tiles.

//#include "matmul/parts/tiled.wgsl"

alias A = f32;
alias B = f32;
alias C = f32;

fn read_b(at: u32) -> f32 {
  return b[at];
}
