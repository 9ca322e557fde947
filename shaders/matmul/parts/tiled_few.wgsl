// The work of matmul/tiled_few, by a kernel that includes plain or fused and defines read_b(at), the vec4 at 4 at.

//#include "matmul/parts/results.wgsl"
//#include "matmul/parts/gated.wgsl"

override COLUMNS: u32 = 16u;
override ROWS: u32 = 8u;
// Quads of k that are staged at once. Staged runs are padded by one against bank conflicts.
override STEP: u32 = 32u;
const THREADS = 128u;
const C_WIDTH = 1u;

// As large as any rows, columns and steps that are chosen together.
var<workgroup> a_tile: array<vec4f, 8u * 33u>;
var<workgroup> b_tile: array<vec4f, 16u * 33u>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row0 = block.y * ROWS;
  let row = thread / COLUMNS;
  let column = column_of_b(block.x, thread % COLUMNS);
  let stride = STEP + 1u;
  let isInside = row < ROWS && row0 + row < params.m && column < params.n;
  var sum = 0.0;
  if (continues() && isInside) { sum = c[params.c_offset + (row0 + row) * params.c_row + column]; }
  prepare_rows(row0, thread);
  let quads = params.k / 4u;
  for (var k0 = 0u; k0 < quads; k0 += STEP) {
    for (var i = thread; i < ROWS * STEP; i += THREADS) {
      let r = i / STEP;
      let k = k0 + i % STEP;
      let isStaged = row0 + r < params.m && k < quads;
      let source = (params.a_offset + (row0 + r) * params.a_row) / 4u + k;
      a_tile[r * stride + i % STEP] = select(vec4f(), read_a(r, k, select(0u, source, isStaged)), isStaged);
    }
    for (var i = thread; i < COLUMNS * STEP; i += THREADS) {
      let j = i / STEP;
      let k = k0 + i % STEP;
      let staged = column_of_b(block.x, j);
      let isStaged = staged < params.n && k < quads;
      let source = (params.b_offset + staged * params.b_column) / 4u + k;
      b_tile[j * stride + i % STEP] = select(vec4f(), read_b(select(0u, source, isStaged)), isStaged);
    }
    workgroupBarrier();
    // Whole steps of matmul/tiled: zeros are added where it adds them.
    let count = (min(STEP, quads - k0) + 3u) / 4u * 4u;
    for (var k = 0u; isInside && k < count; k++) {
      let x = a_tile[row * stride + k];
      let y = b_tile[thread % COLUMNS * stride + k];
      sum = fma(x[0], y[0], sum);
      sum = fma(x[1], y[1], sum);
      sum = fma(x[2], y[2], sum);
      sum = fma(x[3], y[3], sum);
    }
    workgroupBarrier();
  }
  if (OUTPUT == SWIGLU) {
    if (isInside) { sum = with_adapter(sum, row0 + row, column); }
    b_tile[thread].x = sum;
    workgroupBarrier();
    if (isInside && column < params.n / 2u) { store(row0 + row, column, swiglu(sum, b_tile[thread + COLUMNS / 2u].x)); }
  } else if (isInside) {
    store_adapted(row0 + row, column, sum);
  }
}
