// A matrix in f16 as matrix units load it: blocks of 16 x 16, row by row of blocks, row by row within a block, two elements in a
// word. Each row is multiplied by the power of two of its magnitude (parts/powers.wgsl). Rows are filled up with zeros to a
// multiple of 128, the last columns to a multiple of 16.
// A [m, k] in either orientation.

//#include "matmul/parts/blocks.wgsl"

@group(0) @binding(2) var<storage, read_write> halves: array<u32>;

fn put(at: u32, values: vec2f) {
  halves[at] = pack2x16float(values);
}
