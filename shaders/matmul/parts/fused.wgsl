// A product that takes over the kernels around it, with their bits: with INPUT = RMS_NORM the norm of A's rows (norm/rms_norm_tiled),
// and with a rank what an adapter adds, scale low factor^T, where low [m, rank a matrix] = (norm of) A times the adapter's A^T and
// factor [n, rank] holds its B.
// A kernel of 128 threads defines ROWS, at most 16, the bindings norm_weight, low and factor, and a_tile of at least 64 vec4
// for every four rows.

//#include "matmul/parts/fused_params.wgsl"
//#include "norm/parts/row.wgsl"
//#include "parts/halves.wgsl"

override EPSILON: f32 = 0.0;
override INPUT: u32 = 0u;
const RMS_NORM = 2u;

// The threads that add a row's squares; the workgroup takes eight rows at a time.
const NORM_LANES = 64u;

var<workgroup> inverse_rms: array<f32, 16>;

// Leaves r of the block's rows in inverse_rms.
fn prepare_rows(row0: u32, thread: u32) {
  if (INPUT != RMS_NORM) { return; }
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
  if (INPUT != RMS_NORM) { return a[at]; }
  return normalised(a[at], inverse_rms[local_row], norm_weight[quad]);
}

// sum + what the adapter adds. In the order of a product by its own, the rank first to last.
fn with_adapter(sum: f32, row: u32, column: u32) -> f32 {
  if (params.rank == 0u) { return sum; }
  let matrix = u32(column >= params.second) + u32(column >= params.third);
  let low_at = (row * params.low_row + matrix * params.rank) / 4u;
  let factor_at = column * params.rank / 4u;
  var added = 0.0;
  for (var i = 0u; i < params.rank / 4u; i++) {
    let x = low[low_at + i];
    let y = factor[factor_at + i];
    added = fma(x[3], y[3], fma(x[2], y[2], fma(x[1], y[1], fma(x[0], y[0], added))));
  }
  return added_scaled(params.scale, added, sum);
}

// An addend comes before what the adapter adds, a bias after it, as where each is a dispatch.
fn store_adapted(row: u32, column: u32, sum: f32) {
  if (params.mode == 2u && params.addend_row != 0u) {
    let at = params.addend_offset + row * params.addend_row + column;
    c[params.c_offset + row * params.c_row + column] = with_adapter(addend[at] + sum, row, column);
  } else {
    store(row, column, with_adapter(sum, row, column));
  }
}
