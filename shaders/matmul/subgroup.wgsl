// C = alpha f(A) B (+ addend), for CPU drivers whose subgroups are 8 lanes wide.
//
// A [m, k] by the strides (a_row, a_k), so either orientation. B [k, n] and C [m, n] row-major, in vec4.
// INPUT says what f is. 0: A itself. 1: SwiGLU, A's rows being [gate, up] of 2k elements, by the steps of layer/swiglu.wgsl and so
// with its bits. Decoding a few rows is all dispatches, and this saves one.
// One subgroup a workgroup, a block of 32 columns and of 8 or 32 rows. Eight lanes read one row of A each and hand it round
// by broadcast: such drivers issue every storage load lane by lane, so loads are what costs.
// Grid: x = column blocks, y = row blocks.

enable subgroups;

//#include "matmul/parts/subgroup.wgsl"

alias A = f32;
alias B = vec4f;
alias C = vec4f;

fn read_b(at: u32) -> vec4f {
  return b[at];
}

fn start_reading(lane: u32) {}
