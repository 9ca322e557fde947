// C = alpha A B (+ addend), for CPU drivers whose subgroups are 8 lanes wide, with B held by columns.
//
// A [m, k] row-major, in vec4. B [k, n] held by columns, each of them k values on end (weights as a model file has them), in
// vec4. C [m, n] row-major, in vec4. Blocks as in matmul/subgroup: a lane reads its four columns along k and turns them.
// Grid: x = column blocks, y = row blocks.

enable subgroups;

//#include "matmul/parts/columns.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return b[at];
}

fn start_reading(lane: u32) {}
