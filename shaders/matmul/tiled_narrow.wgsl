// C = alpha A B (+ addend) where tiles of 64 x 64 would be too few for a GPU: 9 to 64 rows of a decoding step, adapters.
//
// A [m, k] row-major, B [k, n] held by columns, both in vec4 along k, as in matmul/tiled_few. A workgroup of 128 threads computes 16
// rows and 32 columns, each thread two of each: 4 vec4 of workgroup memory for 16 multiply-adds, most of them read by several
// threads of a subgroup at once. The next 64 of k are on their way while these are multiplied. The bits are those of matmul/tiled.
// With OUTPUT = 1 B's columns are [gate | up], and silu(gate) up is stored, [m, n / 2].
// Grid: x = blocks of 32 columns, y = blocks of 16 rows.

//#include "matmul/parts/tiled_narrow.wgsl"
//#include "matmul/parts/plain.wgsl"

alias A = vec4f;
alias B = vec4f;
alias C = f32;

fn read_b(at: u32) -> vec4f {
  return b[at];
}
