// matmul/magnitudes of a packed matrix.

//#include "matmul/parts/magnitudes.wgsl"
//#include "parts/packed.wgsl"
//#include "parts/nf4_select.wgsl"

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> magnitudes: array<atomic<u32>>;

fn packed_word(at: u32) -> u32 {
  return words[at];
}

fn packed_scale(block: u32) -> f32 {
  return scales[block];
}

fn read_element(at: u32) -> f32 {
  return packed_value(at);
}
