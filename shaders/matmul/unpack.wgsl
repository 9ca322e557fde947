// out[r * out_row + c * out_column] = matrix[offset + r * stride + c]: rows of a packed matrix as f32, or their transpose.
// Grid: a thread per (four rows, column): lanes read side by side, and write runs of four of the transpose.

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
  let column = index % params.columns;
  let row = index / params.columns * 4u;
  let end = min(row + 4u, params.rows);
  for (var r = row; r < end; r++) {
    result[r * params.out_row + column * params.out_column] = packed_value(params.offset + r * params.stride + column);
  }
}
