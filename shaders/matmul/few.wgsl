// C = alpha A B (+ addend) for few rows of A, on CPU drivers whose subgroups are 8 lanes wide.
//
// A [m, k] row-major. B [k, n] held by columns, each of them k values on end (weights as a model file has them). What
// such a product costs is the reading of B, and columns on end come as fast as memory gives them: a lane owns 4 columns
// and reads them along k, in vec4. Rows of A are read by a lane each and handed round. A sum takes one product after
// another, as in every other family: which of them runs depends on the number of rows, and the bits must not.
// Grid: x = blocks of 32 columns, y = blocks of ROWS rows.

enable subgroups;

//#include "matmul/parts/few.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = f32;

fn read_b(at: u32) -> vec4f {
  return b[at];
}

fn start_reading(lane: u32) {}
