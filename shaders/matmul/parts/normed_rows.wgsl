// A's rows normalised where they are read, with the bits of norm/rms_norm_tiled.
// A kernel of 128 threads defines ROWS, at most 16, the binding norm_weight, and a_tile of at least 64 vec4 for every four rows.

//#include "norm/parts/row.wgsl"
//#include "parts/halves.wgsl"

override EPSILON: f32 = 0.0;

// The threads that add a row's squares; the workgroup takes eight rows at a time.
const NORM_LANES = 64u;

var<workgroup> inverse_rms: array<f32, 16>;

// Leaves r of the block's rows in inverse_rms.
fn prepare_rows(row0: u32, thread: u32) {
  let lane = thread % NORM_LANES;
  let part = thread / NORM_LANES;
  for (var four = part; 4u * four < ROWS; four += 2u) {
    var sums = vec4f();
    for (var i = 0u; i < hidden(4u); i++) {
      sums = vec4f(sums.yzw, squares_of(row0, 4u * four + i, lane));
    }
    a_tile[four * NORM_LANES + lane] = sums;
  }
  for (var half = NORM_LANES / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    for (var four = part; 4u * four < ROWS && lane < half; four += 2u) {
      a_tile[four * NORM_LANES + lane] += a_tile[four * NORM_LANES + lane + half];
    }
  }
  workgroupBarrier();
  if (thread < ROWS) {
    inverse_rms[thread] = inverse_rms_of(a_tile[thread / 4u * NORM_LANES][thread % 4u], params.k, EPSILON);
  }
  workgroupBarrier();
}

// A lane's part of the squares of a row; 0 outside of A or of the block.
fn squares_of(row0: u32, local_row: u32, lane: u32) -> f32 {
  if (local_row >= ROWS || row0 + local_row >= params.m) { return 0.0; }
  let start = (params.a_offset + (row0 + local_row) * params.a_row) / 4u;
  var squares = vec4f();
  for (var q = lane; q < params.k / 4u; q += NORM_LANES) {
    let value = a[start + q];
    squares = fma(value, value, squares);
  }
  return (squares.x + squares.y) + (squares.z + squares.w);
}

// The vec4 at 4 at, of the block's row and of column 4 quad.
fn read_a(local_row: u32, quad: u32, at: u32) -> vec4f {
  return normalised(a[at], inverse_rms[local_row], norm_weight[quad]);
}
