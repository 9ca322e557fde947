// C = alpha A B (+ addend) for few rows of A, for GPUs.
//
// A [m, k] row-major, in vec4. B [k, n] held by columns, each of them k values on end (weights as a model file has them), in
// vec4. Such a product is bound by reading B: long runs of few columns are staged in workgroup memory, so that many
// workgroups read at once, with few barriers. Each thread owns at most one sum, by the expressions of matmul/tiled and so with its bits.
// Blocks that would be few have 8 columns, and of one row longer runs.
// With OUTPUT = 1 B's columns are [gate | up], and silu(gate) up is stored, [m, n / 2].
// Grid: x = blocks of COLUMNS columns, y = blocks of ROWS rows.

//#include "matmul/parts/tiled_few.wgsl"
//#include "matmul/parts/plain.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = f32;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
