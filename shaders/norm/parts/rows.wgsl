// Rows inside wider buffers: `per_token` rows lie side by side in each token's stretch of `stride` elements.
// A kernel's Params hold per_token and width.

// The first vec4 of a row.
fn row_start(row: u32, stride: u32, offset: u32) -> u32 {
  let token = row / params.per_token;
  return (token * stride + offset + (row - token * params.per_token) * params.width) / 4u;
}
