// The work of matmul/few, by a kernel that defines read_b(at), the vec4 at 4 at, and start_reading(lane).

//#include "matmul/parts/product.wgsl"

// 1, 2, 4 or 8.
override ROWS: u32 = 8u;

const LANES = 8u;
const COLUMNS = 4u;
const MOST_ROWS = 8u;
const C_WIDTH = 1u;

// Of ROWS rows, column by column.
alias Sums = array<f32, MOST_ROWS * COLUMNS>;

// Takes the first sum off the queue and puts `last` at its end.
fn push(sums: ptr<function, Sums>, last: f32) {
  for (var i = 1u; i < COLUMNS * ROWS; i++) {
    (*sums)[i - 1u] = (*sums)[i];
  }
  (*sums)[COLUMNS * ROWS - 1u] = last;
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  start_reading(lane);
  let first_column = block.x * LANES * COLUMNS + lane;
  let first_row = block.y * ROWS;
  let row_at = (params.a_offset + min(first_row + lane, params.m - 1u) * params.a_row) / 4u;
  var column_at: array<u32, COLUMNS>;
  for (var j = 0u; j < COLUMNS; j++) {
    let column = min(first_column + j * LANES, params.n - 1u);
    column_at[j] = (params.b_offset + column * params.b_column) / 4u;
  }
  var sums: Sums;
  let count = hidden(COLUMNS * ROWS);
  if (continues()) {
    for (var i = 0u; i < count; i++) {
      let row = min(first_row + i % ROWS, params.m - 1u);
      let column = min(first_column + i / ROWS * LANES, params.n - 1u);
      push(&sums, c[params.c_offset + row * params.c_row + column]);
    }
  }
  for (var i = 0u; i < params.k / 4u; i++) {
    let own = a[row_at + i];
    var rows: array<vec4f, MOST_ROWS>;
    for (var r = 0u; r < ROWS; r++) {
      rows[r] = subgroupShuffle(own, r);
    }
    for (var j = 0u; j < COLUMNS; j++) {
      let column = read_b(column_at[j] + i);
      for (var r = 0u; r < ROWS; r++) {
        let row = rows[r];
        var sum = sums[j * ROWS + r];
        sum += row.x * column.x;
        sum += row.y * column.y;
        sum += row.z * column.z;
        sum += row.w * column.w;
        sums[j * ROWS + r] = sum;
      }
    }
  }
  for (var i = 0u; i < count; i++) {
    let row = first_row + i % ROWS;
    let column = first_column + i / ROWS * LANES;
    if (column < params.n && row < params.m) {
      store(row, column, sums[0]);
    }
    push(&sums, 0.0);
  }
}
