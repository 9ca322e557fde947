// One row of C = alpha A B (+ addend) with B in bfloat16, on CPU drivers whose subgroups are 8 lanes wide.
//
// A [1, k]. B [k, n] held by columns, each of them k values on end. As matmul/few: a lane owns 4 columns and reads them along k, and a
// sum takes one product after another. A load takes 8 elements, because such drivers check the bounds of each load, for each lane. Every
// lane reads the same elements of A; with one row there is nothing to share.
// k, B's offset and the distance of its columns are multiples of 8.
// Grid: x = blocks of 32 columns.

enable subgroups;

//#include "matmul/parts/product.wgsl"

alias A = vec4f;
alias B = vec4u;
alias C = f32;

const LANES = 8u;
const COLUMNS = 4u;
const C_WIDTH = 1u;
const ELEMENTS = 8u;

fn quad_of(low: u32, high: u32) -> vec4f {
  return bitcast<vec4f>(vec4u(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
}

fn add_quad(before: f32, row: vec4f, column: vec4f) -> f32 {
  var sum = before;
  sum += row.x * column.x;
  sum += row.y * column.y;
  sum += row.z * column.z;
  sum += row.w * column.w;
  return sum;
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  let first_column = block.x * LANES * COLUMNS + lane;
  let row_at = params.a_offset / 4u;
  var column_at: array<u32, COLUMNS>;
  var sums: array<f32, COLUMNS>;
  for (var j = 0u; j < COLUMNS; j++) {
    let column = min(first_column + j * LANES, params.n - 1u);
    column_at[j] = (params.b_offset + column * params.b_column) / ELEMENTS;
    if (continues()) {
      sums[j] = c[params.c_offset + column];
    }
  }
  for (var i = 0u; i < params.k / ELEMENTS; i++) {
    let low = a[row_at + 2u * i];
    let high = a[row_at + 2u * i + 1u];
    for (var j = 0u; j < COLUMNS; j++) {
      let words = b[column_at[j] + i];
      let sum = add_quad(sums[j], low, quad_of(words.x, words.y));
      sums[j] = add_quad(sum, high, quad_of(words.z, words.w));
    }
  }
  for (var j = 0u; j < COLUMNS; j++) {
    let column = first_column + j * LANES;
    if (column < params.n) {
      store(0u, column, sums[j]);
    }
  }
}
