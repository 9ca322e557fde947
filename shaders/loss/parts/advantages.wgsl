// Advantages per token, or per row in column 1 of the row table. A kernel binds advantages, row_of_token and workspace.

override TOKEN_ADVANTAGE: bool = false;

fn advantage(t: u32) -> f32 {
  if (TOKEN_ADVANTAGE) { return advantages[t]; }
  return workspace[params.row_stride + row_of_token[t]];
}
