// matmul/halves in f32.

//#include "matmul/parts/blocks.wgsl"

@group(0) @binding(2) var<storage, read_write> blocks: array<vec2f>;

fn put(at: u32, values: vec2f) {
  blocks[at] = values;
}
