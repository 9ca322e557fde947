// The gradient of one piece of the logits, in place; pieces, rows and strides as in head/logits_forward.wgsl.

//#include "head/parts/pieces.wgsl"
//#include "head/parts/backward.wgsl"

// Wraps to a large number for a target before the piece.
fn target_column(row: u32) -> u32 {
  return targets[row] - params.column_offset;
}
