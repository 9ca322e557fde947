// The work of matmul/tiled_few, by a kernel that defines read_b(at), the vec4 at 4 at.

//#include "matmul/parts/product.wgsl"

override COLUMNS: u32 = 16u;
override ROWS: u32 = 8u;
// Quads of k that are staged at once. Staged runs are padded by one against bank conflicts.
override STEP: u32 = 32u;
override INPUT: u32 = 0u;
const THREADS = 128u;
const C_WIDTH = 1u;
const SWIGLU = 1u;

// As large as any rows, columns and steps that are chosen together.
var<workgroup> a_tile: array<vec4f, 8u * 33u>;
var<workgroup> b_tile: array<vec4f, 16u * 33u>;

// A's vec4 at 4 at; of swiglu by the expression of layer/swiglu, whose bits it has.
fn read_a(at: u32) -> vec4f {
  if (INPUT == SWIGLU) {
    let gate = a[at];
    return gate / (1.0 + exp(-gate)) * a[at + params.k / 4u];
  }
  return a[at];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row0 = block.y * ROWS;
  let column0 = block.x * COLUMNS;
  let row = thread / COLUMNS;
  let column = thread % COLUMNS;
  let stride = STEP + 1u;
  let isInside = row < ROWS && row0 + row < params.m && column0 + column < params.n;
  var sum = 0.0;
  if (continues() && isInside) { sum = c[params.c_offset + (row0 + row) * params.c_row + column0 + column]; }
  let quads = params.k / 4u;
  for (var k0 = 0u; k0 < quads; k0 += STEP) {
    for (var i = thread; i < ROWS * STEP; i += THREADS) {
      let r = i / STEP;
      let k = k0 + i % STEP;
      let isStaged = row0 + r < params.m && k < quads;
      let source = (params.a_offset + (row0 + r) * params.a_row) / 4u + k;
      a_tile[r * stride + i % STEP] = select(vec4f(), read_a(select(0u, source, isStaged)), isStaged);
    }
    for (var i = thread; i < COLUMNS * STEP; i += THREADS) {
      let j = i / STEP;
      let k = k0 + i % STEP;
      let isStaged = column0 + j < params.n && k < quads;
      let source = (params.b_offset + (column0 + j) * params.b_column) / 4u + k;
      b_tile[j * stride + i % STEP] = select(vec4f(), read_b(select(0u, source, isStaged)), isStaged);
    }
    workgroupBarrier();
    // Whole steps of matmul/tiled: zeros are added where it adds them.
    let count = (min(STEP, quads - k0) + 3u) / 4u * 4u;
    for (var k = 0u; isInside && k < count; k++) {
      let x = a_tile[row * stride + k];
      let y = b_tile[column * stride + k];
      sum = fma(x[0], y[0], sum);
      sum = fma(x[1], y[1], sum);
      sum = fma(x[2], y[2], sum);
      sum = fma(x[3], y[3], sum);
    }
    workgroupBarrier();
  }
  if (isInside) { store(row0 + row, column0 + column, sum); }
}
