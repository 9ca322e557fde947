// C = alpha f(A) B (+ addend), for CPU drivers whose subgroups are 8 lanes wide.
//
// A [m, k] by the strides (a_row, a_k), so either orientation. B [k, n] and C [m, n] row-major, in vec4.
// INPUT says what f is. 0: A itself. 1: RMS norm of A's rows, its weight [k] bound as `addend`. 2: SwiGLU, A's rows
// being [gate, up] of 2k elements. Decoding a few rows is all dispatches, and these save some.
// One subgroup a workgroup: lane l owns columns 4l..4l+3 of a block of 32, and 8 or 32 rows. Eight lanes read one row of A
// each and hand it round by broadcast: such drivers issue every storage load lane by lane, so loads are what costs.
// Sums leave through workgroup memory, each lane by its own slots: no barrier, and a small epilogue to compile.
// Grid: x = column blocks, y = row blocks.
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
  // 0: C = product. 1: C += product. 2: C = addend + product.
  mode: u32,
  // Of the RMS norm.
  epsilon: f32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
@group(0) @binding(2) var<storage, read> addend: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> c: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override INPUT: u32 = 0u;
// Of a block: 8 or 32. The sums of rows beyond are left out.
override ROWS: u32 = 32u;

const LANES = 8u;
const RMS_NORM = 1u;
const SWIGLU = 2u;

var<workgroup> tile: array<vec4f, 256>;

fn load(at: u32) -> f32 {
  if (INPUT == SWIGLU) {
    let gate = a[at];
    return gate / (1.0 + exp(-gate)) * a[at + params.k];
  }
  return a[at];
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  let columns = params.n / 4u;
  let column = block.x * LANES + lane;
  let row0 = block.y * ROWS;
  let last = params.m - 1u;
  var a0 = params.a_offset + min(row0 + 0u + lane, last) * params.a_row;
  var a1 = params.a_offset + min(row0 + 8u + lane, last) * params.a_row;
  var a2 = params.a_offset + min(row0 + 16u + lane, last) * params.a_row;
  var a3 = params.a_offset + min(row0 + 24u + lane, last) * params.a_row;
  var b0 = params.b_offset / 4u + min(column, columns - 1u);
  let bStep = params.b_k / 4u;
  // Of the lane's own row in each group of 8.
  var squares = vec4f();
  var sum0 = vec4f();
  var sum1 = vec4f();
  var sum2 = vec4f();
  var sum3 = vec4f();
  var sum4 = vec4f();
  var sum5 = vec4f();
  var sum6 = vec4f();
  var sum7 = vec4f();
  var sum8 = vec4f();
  var sum9 = vec4f();
  var sum10 = vec4f();
  var sum11 = vec4f();
  var sum12 = vec4f();
  var sum13 = vec4f();
  var sum14 = vec4f();
  var sum15 = vec4f();
  var sum16 = vec4f();
  var sum17 = vec4f();
  var sum18 = vec4f();
  var sum19 = vec4f();
  var sum20 = vec4f();
  var sum21 = vec4f();
  var sum22 = vec4f();
  var sum23 = vec4f();
  var sum24 = vec4f();
  var sum25 = vec4f();
  var sum26 = vec4f();
  var sum27 = vec4f();
  var sum28 = vec4f();
  var sum29 = vec4f();
  var sum30 = vec4f();
  var sum31 = vec4f();
  for (var k = 0u; k < params.k; k++) {
    var bk = b[b0];
    b0 += bStep;
    let rows0 = load(a0);
    a0 += params.a_k;
    var rows1 = 0.0;
    var rows2 = 0.0;
    var rows3 = 0.0;
    if (ROWS > 8u) {
      rows1 = load(a1);
      a1 += params.a_k;
      rows2 = load(a2);
      a2 += params.a_k;
      rows3 = load(a3);
      a3 += params.a_k;
    }
    if (INPUT == RMS_NORM) {
      let rows = vec4f(rows0, rows1, rows2, rows3);
      squares += rows * rows;
      bk *= addend[k / 4u][k % 4u];
    }
    sum0 += subgroupBroadcast(rows0, 0u) * bk;
    sum1 += subgroupBroadcast(rows0, 1u) * bk;
    sum2 += subgroupBroadcast(rows0, 2u) * bk;
    sum3 += subgroupBroadcast(rows0, 3u) * bk;
    sum4 += subgroupBroadcast(rows0, 4u) * bk;
    sum5 += subgroupBroadcast(rows0, 5u) * bk;
    sum6 += subgroupBroadcast(rows0, 6u) * bk;
    sum7 += subgroupBroadcast(rows0, 7u) * bk;
    if (ROWS > 8u) {
      sum8 += subgroupBroadcast(rows1, 0u) * bk;
      sum9 += subgroupBroadcast(rows1, 1u) * bk;
      sum10 += subgroupBroadcast(rows1, 2u) * bk;
      sum11 += subgroupBroadcast(rows1, 3u) * bk;
      sum12 += subgroupBroadcast(rows1, 4u) * bk;
      sum13 += subgroupBroadcast(rows1, 5u) * bk;
      sum14 += subgroupBroadcast(rows1, 6u) * bk;
      sum15 += subgroupBroadcast(rows1, 7u) * bk;
      sum16 += subgroupBroadcast(rows2, 0u) * bk;
      sum17 += subgroupBroadcast(rows2, 1u) * bk;
      sum18 += subgroupBroadcast(rows2, 2u) * bk;
      sum19 += subgroupBroadcast(rows2, 3u) * bk;
      sum20 += subgroupBroadcast(rows2, 4u) * bk;
      sum21 += subgroupBroadcast(rows2, 5u) * bk;
      sum22 += subgroupBroadcast(rows2, 6u) * bk;
      sum23 += subgroupBroadcast(rows2, 7u) * bk;
      sum24 += subgroupBroadcast(rows3, 0u) * bk;
      sum25 += subgroupBroadcast(rows3, 1u) * bk;
      sum26 += subgroupBroadcast(rows3, 2u) * bk;
      sum27 += subgroupBroadcast(rows3, 3u) * bk;
      sum28 += subgroupBroadcast(rows3, 4u) * bk;
      sum29 += subgroupBroadcast(rows3, 5u) * bk;
      sum30 += subgroupBroadcast(rows3, 6u) * bk;
      sum31 += subgroupBroadcast(rows3, 7u) * bk;
    }
  }
  var scale = vec4f(params.alpha);
  if (INPUT == RMS_NORM) {
    scale *= inverseSqrt(squares / f32(params.k) + params.epsilon);
  }
  tile[0u + lane] = sum0 * subgroupBroadcast(scale.x, 0u);
  tile[8u + lane] = sum1 * subgroupBroadcast(scale.x, 1u);
  tile[16u + lane] = sum2 * subgroupBroadcast(scale.x, 2u);
  tile[24u + lane] = sum3 * subgroupBroadcast(scale.x, 3u);
  tile[32u + lane] = sum4 * subgroupBroadcast(scale.x, 4u);
  tile[40u + lane] = sum5 * subgroupBroadcast(scale.x, 5u);
  tile[48u + lane] = sum6 * subgroupBroadcast(scale.x, 6u);
  tile[56u + lane] = sum7 * subgroupBroadcast(scale.x, 7u);
  if (ROWS > 8u) {
    tile[64u + lane] = sum8 * subgroupBroadcast(scale.y, 0u);
    tile[72u + lane] = sum9 * subgroupBroadcast(scale.y, 1u);
    tile[80u + lane] = sum10 * subgroupBroadcast(scale.y, 2u);
    tile[88u + lane] = sum11 * subgroupBroadcast(scale.y, 3u);
    tile[96u + lane] = sum12 * subgroupBroadcast(scale.y, 4u);
    tile[104u + lane] = sum13 * subgroupBroadcast(scale.y, 5u);
    tile[112u + lane] = sum14 * subgroupBroadcast(scale.y, 6u);
    tile[120u + lane] = sum15 * subgroupBroadcast(scale.y, 7u);
    tile[128u + lane] = sum16 * subgroupBroadcast(scale.z, 0u);
    tile[136u + lane] = sum17 * subgroupBroadcast(scale.z, 1u);
    tile[144u + lane] = sum18 * subgroupBroadcast(scale.z, 2u);
    tile[152u + lane] = sum19 * subgroupBroadcast(scale.z, 3u);
    tile[160u + lane] = sum20 * subgroupBroadcast(scale.z, 4u);
    tile[168u + lane] = sum21 * subgroupBroadcast(scale.z, 5u);
    tile[176u + lane] = sum22 * subgroupBroadcast(scale.z, 6u);
    tile[184u + lane] = sum23 * subgroupBroadcast(scale.z, 7u);
    tile[192u + lane] = sum24 * subgroupBroadcast(scale.w, 0u);
    tile[200u + lane] = sum25 * subgroupBroadcast(scale.w, 1u);
    tile[208u + lane] = sum26 * subgroupBroadcast(scale.w, 2u);
    tile[216u + lane] = sum27 * subgroupBroadcast(scale.w, 3u);
    tile[224u + lane] = sum28 * subgroupBroadcast(scale.w, 4u);
    tile[232u + lane] = sum29 * subgroupBroadcast(scale.w, 5u);
    tile[240u + lane] = sum30 * subgroupBroadcast(scale.w, 6u);
    tile[248u + lane] = sum31 * subgroupBroadcast(scale.w, 7u);
  }
  if (column >= columns) {
    return;
  }
  let rows = min(ROWS, params.m - row0);
  for (var r = 0u; r < rows; r++) {
    let at = (params.c_offset + (row0 + r) * params.c_row) / 4u + column;
    var value = tile[r * LANES + lane];
    if (params.mode == 1u) {
      value += c[at];
    } else if (params.mode == 2u) {
      value += addend[at];
    }
    c[at] = value;
  }
}
