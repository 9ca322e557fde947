// B in a packed format, as words.
//#include "parts/packed.wgsl"

alias B = u32;

@group(0) @binding(4) var<storage, read> scales: array<f32>;

fn packed_word(at: u32) -> u32 {
  return b[at];
}

fn packed_scale(block: u32) -> f32 {
  return scales[block];
}
