// magnitudes[row] = the bits of max |x[offset + row * stride + k * along_k]| over k, joined with what magnitudes holds: integers,
// so that their order does not matter. Cleared magnitudes give the largest of each row; parts/powers.wgsl says what for.
// Grid: x = runs of 256 along k, y and z = blocks of 16 rows.

//#include "matmul/parts/magnitudes.wgsl"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> magnitudes: array<atomic<u32>>;

fn read_element(at: u32) -> f32 {
  return x[at];
}
