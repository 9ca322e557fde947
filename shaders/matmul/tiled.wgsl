// C = alpha A B (+ addend), any orientation and any size, for GPUs: tiles staged in workgroup memory.
//
// A [m, k] by the strides (a_row, a_k), B [k, n] by (b_k, b_column), C [m, n] row-major. A workgroup of 16 x 16 threads
// computes a 64 x 64 tile in steps of 16 over k; each thread a 4 x 4 piece of it. Beyond the edges zeros are staged.
// Grid: x = column tiles, y = row tiles.

//#include "matmul/parts/product.wgsl"

alias A = f32;
alias B = f32;
alias C = f32;

const TILE = 64u;
const STEP = 16u;

// Rows padded by one against bank conflicts.
var<workgroup> aTile: array<f32, 1040>;
var<workgroup> bTile: array<f32, 1040>;

@compute @workgroup_size(16, 16)
fn main(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_id) thread: vec3u,
  @builtin(local_invocation_index) index: u32,
) {
  let row0 = block.y * TILE;
  let column0 = block.x * TILE;
  var sum: array<vec4f, 4>;
  if (continues()) {
    for (var i = 0u; i < 4u; i++) {
      let row = min(row0 + thread.y + i * 16u, params.m - 1u);
      for (var j = 0u; j < 4u; j++) {
        sum[i][j] = c[params.c_offset + row * params.c_row + min(column0 + thread.x + j * 16u, params.n - 1u)];
      }
    }
  }
  for (var k0 = 0u; k0 < params.k; k0 += STEP) {
    // Neighbouring threads read neighbouring addresses in either orientation.
    for (var i = index; i < TILE * STEP; i += 256u) {
      let aRow = select(i / STEP, i % TILE, params.a_k != 1u);
      let aK = select(i % STEP, i / TILE, params.a_k != 1u);
      let aInside = row0 + aRow < params.m && k0 + aK < params.k;
      let aAt = params.a_offset + (row0 + aRow) * params.a_row + (k0 + aK) * params.a_k;
      aTile[aK * (TILE + 1u) + aRow] = select(0.0, a[select(0u, aAt, aInside)], aInside);
      let bColumn = select(i / STEP, i % TILE, params.b_column == 1u);
      let bK = select(i % STEP, i / TILE, params.b_column == 1u);
      let bInside = column0 + bColumn < params.n && k0 + bK < params.k;
      let bAt = params.b_offset + (k0 + bK) * params.b_k + (column0 + bColumn) * params.b_column;
      bTile[bK * (TILE + 1u) + bColumn] = select(0.0, b[select(0u, bAt, bInside)], bInside);
    }
    workgroupBarrier();
    for (var k = 0u; k < STEP; k++) {
      let at = k * (TILE + 1u);
      let bRow = vec4f(
        bTile[at + thread.x],
        bTile[at + thread.x + 16u],
        bTile[at + thread.x + 32u],
        bTile[at + thread.x + 48u],
      );
      sum[0] += aTile[at + thread.y] * bRow;
      sum[1] += aTile[at + thread.y + 16u] * bRow;
      sum[2] += aTile[at + thread.y + 32u] * bRow;
      sum[3] += aTile[at + thread.y + 48u] * bRow;
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < 4u; i++) {
    for (var j = 0u; j < 4u; j++) {
      let row = row0 + thread.y + i * 16u;
      let column = column0 + thread.x + j * 16u;
      if (row < params.m && column < params.n) {
        let at = params.c_offset + row * params.c_row + column;
        store(at, sum[i][j]);
      }
    }
  }
}
