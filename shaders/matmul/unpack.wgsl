// out[r * out_row + c * out_column] = matrix[offset + r * stride + c]: rows of a packed matrix as f32, or their transpose.
// Grid: a thread per block of four rows and four columns.

//#include "parts/threads.wgsl"
//#include "parts/packed.wgsl"
//#include "parts/nf4_select.wgsl"

struct Params { rows: u32, columns: u32, offset: u32, stride: u32, out_row: u32, out_column: u32 }

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn packed_word(at: u32) -> u32 {
  return words[at];
}

fn packed_scale(block: u32) -> f32 {
  return scales[block];
}

fn compute_thread(index: u32) {
  let isTurned = params.out_row == 1u;
  // Neighbouring threads write side by side.
  let rows = (params.rows + 3u) / 4u;
  let columns = (params.columns + 3u) / 4u;
  let row = select(index / columns, index % rows, isTurned) * 4u;
  let column = select(index % columns, index / rows, isTurned) * 4u;
  if (row >= params.rows || column >= params.columns) { return; }
  let at = params.offset + row * params.stride + column;
  let out = row * params.out_row + column * params.out_column;
  if ((params.offset | params.stride | params.rows | params.columns) % 4u == 0u) {
    for (var r = 0u; r < 4u; r++) {
      let quad = packed_quad((at + r * params.stride) / 4u);
      for (var c = 0u; c < 4u; c++) {
        result[out + r * params.out_row + c * params.out_column] = quad[c];
      }
    }
    return;
  }
  for (var r = 0u; r < min(4u, params.rows - row); r++) {
    for (var c = 0u; c < min(4u, params.columns - column); c++) {
      result[out + r * params.out_row + c * params.out_column] = packed_value(at + r * params.stride + c);
    }
  }
}
