// Rows of x and y inside wider buffers: `per_token` rows lie side by side in each token's stretch of `stride` elements.
// A kernel's Params hold per_token, width, and a stride and an offset for x and for y.

// The first vec4 of a row.
fn row_start(row: u32, stride: u32, offset: u32) -> u32 {
  let token = row / params.per_token;
  return (token * stride + offset + (row - token * params.per_token) * params.width) / 4u;
}

fn x_start(row: u32) -> u32 {
  return row_start(row, params.x_stride, params.x_offset);
}

fn y_start(row: u32) -> u32 {
  return row_start(row, params.y_stride, params.y_offset);
}
