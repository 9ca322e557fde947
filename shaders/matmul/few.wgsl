// C = alpha A B (+ addend) for few rows of A, on CPU drivers whose subgroups are 8 lanes wide.
//
// A [m, k] row-major. B [k, n] held by columns, each of them k values on end (weights as a model file has them). What
// such a product costs is the reading of B, and columns on end come as fast as memory gives them: a lane owns 4 columns
// and reads them along k, in vec4. Rows of A are read by a lane each and handed round. A sum takes one product after
// another, as in every other family: which of them runs depends on the number of rows, and the bits must not.
// Grid: x = blocks of 32 columns, y = blocks of ROWS rows.
enable subgroups;

struct Params {
  m: u32,
  n: u32,
  k: u32,
  a_offset: u32,
  a_row: u32,
  a_k: u32,
  b_offset: u32,
  b_k: u32,
  b_column: u32,
  c_offset: u32,
  c_row: u32,
  alpha: f32,
  // 0: C = product. 1: C += product. 2: C = addend + product. 3, 4: as 0 and 2, sums that go on from what C holds.
  mode: u32,
}

@group(0) @binding(0) var<storage, read> a: array<vec4f>;
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
@group(0) @binding(2) var<storage, read> addend: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

// 1, 2, 4 or 8.
override ROWS: u32 = 8u;

const LANES = 8u;
const COLUMNS = 4u;
const MOST_ROWS = 8u;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  let first_column = block.x * LANES * COLUMNS + lane;
  let first_row = block.y * ROWS;
  let row_at = (params.a_offset + min(first_row + lane, params.m - 1u) * params.a_row) / 4u;
  var column_at: array<u32, COLUMNS>;
  for (var j = 0u; j < COLUMNS; j++) {
    let column = min(first_column + j * LANES, params.n - 1u);
    column_at[j] = (params.b_offset + column * params.b_column) / 4u;
  }
  var sums: array<array<f32, MOST_ROWS>, COLUMNS>;
  if (params.mode >= 3u) {
    for (var j = 0u; j < COLUMNS; j++) {
      for (var r = 0u; r < ROWS; r++) {
        let row = min(first_row + r, params.m - 1u);
        sums[j][r] = c[params.c_offset + row * params.c_row + min(first_column + j * LANES, params.n - 1u)];
      }
    }
  }
  for (var i = 0u; i < params.k / 4u; i++) {
    let own = a[row_at + i];
    var rows: array<vec4f, MOST_ROWS>;
    for (var r = 0u; r < ROWS; r++) {
      rows[r] = subgroupShuffle(own, r);
    }
    for (var j = 0u; j < COLUMNS; j++) {
      let column = b[column_at[j] + i];
      for (var r = 0u; r < ROWS; r++) {
        let row = rows[r];
        var sum = sums[j][r];
        sum += row.x * column.x;
        sum += row.y * column.y;
        sum += row.z * column.z;
        sum += row.w * column.w;
        sums[j][r] = sum;
      }
    }
  }
  for (var j = 0u; j < COLUMNS; j++) {
    let column = first_column + j * LANES;
    for (var r = 0u; r < ROWS; r++) {
      let row = first_row + r;
      if (column >= params.n || row >= params.m) {
        continue;
      }
      let at = params.c_offset + row * params.c_row + column;
      var value = params.alpha * sums[j][r];
      if (params.mode == 1u) {
        value += c[at];
      } else if (params.mode == 2u || params.mode == 4u) {
        value += addend[at];
      }
      c[at] = value;
    }
  }
}
