// One piece of the vocabulary: columns [column_offset, column_offset + columns) of every row.
//#include "head/parts/columns.wgsl"

struct Params { rows: u32, first_row: u32, columns: u32, column_offset: u32, stride: u32, inverse_temperature: f32 }

@group(1) @binding(0) var<uniform> params: Params;

// Lanes that hold a logit of the piece.
fn used(quad: u32) -> vec4<bool> {
  return columns_of(quad) < vec4u(params.columns);
}
