// result[t, :] = table[tokens[t], :]. tokens [T], result [T, width] in vec4s. `table` binds rows [first_row, first_row +
// row_count); tokens outside leave the result as it is.
// Grid: a thread per vec4 of the result.

//#include "parts/threads.wgsl"

struct Params { tokens: u32, width: u32, first_row: u32, row_count: u32 }

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= params.tokens * quads) { return; }
  let token = index / quads;
  // Below the window the difference wraps to a large number.
  let row = tokens[token] - params.first_row;
  if (row < params.row_count) {
    result[index] = table[row * quads + index - token * quads];
  }
}
