// The work of layer/embedding, by a kernel that defines alias Table and read_table(at), the vec4 at 4 at.

//#include "parts/threads.wgsl"

struct Params { tokens: u32, width: u32, first_row: u32, row_count: u32 }

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<Table>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= params.tokens * quads) { return; }
  let token = index / quads;
  // Below the window the difference wraps to a large number.
  let row = tokens[token] - params.first_row;
  if (row < params.row_count) {
    result[index] = read_table(row * quads + index - token * quads);
  }
}
