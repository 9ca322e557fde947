// layer/embedding with the table in a packed format.

//#include "layer/parts/embedding.wgsl"
//#include "parts/packed.wgsl"
//#include "parts/nf4_select.wgsl"

alias Table = u32;

@group(0) @binding(3) var<storage, read> scales: array<f32>;

fn packed_word(at: u32) -> u32 {
  return table[at];
}

fn packed_scale(block: u32) -> f32 {
  return scales[block];
}

fn read_table(at: u32) -> vec4f {
  return packed_quad(at);
}
