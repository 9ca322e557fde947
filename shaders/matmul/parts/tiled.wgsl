// The work of matmul/tiled, by a kernel that defines read_b(at), an element.

//#include "matmul/parts/product.wgsl"

const TILE = 64u;
const STEP = 16u;
const C_WIDTH = 1u;

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
      bTile[bK * (TILE + 1u) + bColumn] = select(0.0, read_b(select(0u, bAt, bInside)), bInside);
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
      sum[0] = fma(vec4f(aTile[at + thread.y]), bRow, sum[0]);
      sum[1] = fma(vec4f(aTile[at + thread.y + 16u]), bRow, sum[1]);
      sum[2] = fma(vec4f(aTile[at + thread.y + 32u]), bRow, sum[2]);
      sum[3] = fma(vec4f(aTile[at + thread.y + 48u]), bRow, sum[3]);
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < 4u; i++) {
    for (var j = 0u; j < 4u; j++) {
      let row = row0 + thread.y + i * 16u;
      let column = column0 + thread.x + j * 16u;
      if (row < params.m && column < params.n) {
        store(row, column, sum[i][j]);
      }
    }
  }
}
