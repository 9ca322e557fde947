// Logits by rows [rows, stride], V of each used; the buffers per row start at first_row.
//#include "head/parts/columns.wgsl"

struct Params { rows: u32, first_row: u32, vocabulary: u32, stride: u32, inverse_temperature: f32 }

@group(1) @binding(0) var<uniform> params: Params;

// Lanes that hold a logit of the vocabulary.
fn used(quad: u32) -> vec4<bool> {
  return columns_of(quad) < vec4u(params.vocabulary);
}
