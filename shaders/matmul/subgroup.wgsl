// C = alpha f(A) B (+ addend), for CPU drivers whose subgroups are 8 lanes wide.
//
// A [m, k] by the strides (a_row, a_k), so either orientation. B [k, n] and C [m, n] row-major, in vec4.
// INPUT says what f is. 0: A itself. 1: SwiGLU, A's rows being [gate, up] of 2k elements, by the steps of layer/swiglu.wgsl and so
// with its bits. Decoding a few rows is all dispatches, and this saves one.
// One subgroup a workgroup: lane l owns columns 4l..4l+3 of a block of 32, and 8 or 32 rows. Eight lanes read one row of A
// each and hand it round by broadcast: such drivers issue every storage load lane by lane, so loads are what costs.
// Sums leave through workgroup memory, each lane by its own slots: no barrier, and a small epilogue to compile.
// Grid: x = column blocks, y = row blocks.

enable subgroups;

//#include "matmul/parts/product.wgsl"

alias A = f32;
alias B = vec4f;
alias C = vec4f;

override INPUT: u32 = 0u;
// Of a block: 8 or 32. The sums of rows beyond are left out.
override ROWS: u32 = 32u;

const LANES = 8u;
const SWIGLU = 1u;

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
  if (continues()) {
    for (var r = 0u; r < ROWS; r++) {
      let at = (params.c_offset + min(row0 + r, last) * params.c_row) / 4u;
      tile[r * LANES + lane] = c[at + min(column, columns - 1u)];
    }
    sum0 = tile[0u + lane];
    sum1 = tile[8u + lane];
    sum2 = tile[16u + lane];
    sum3 = tile[24u + lane];
    sum4 = tile[32u + lane];
    sum5 = tile[40u + lane];
    sum6 = tile[48u + lane];
    sum7 = tile[56u + lane];
    if (ROWS > 8u) {
      sum8 = tile[64u + lane];
      sum9 = tile[72u + lane];
      sum10 = tile[80u + lane];
      sum11 = tile[88u + lane];
      sum12 = tile[96u + lane];
      sum13 = tile[104u + lane];
      sum14 = tile[112u + lane];
      sum15 = tile[120u + lane];
      sum16 = tile[128u + lane];
      sum17 = tile[136u + lane];
      sum18 = tile[144u + lane];
      sum19 = tile[152u + lane];
      sum20 = tile[160u + lane];
      sum21 = tile[168u + lane];
      sum22 = tile[176u + lane];
      sum23 = tile[184u + lane];
      sum24 = tile[192u + lane];
      sum25 = tile[200u + lane];
      sum26 = tile[208u + lane];
      sum27 = tile[216u + lane];
      sum28 = tile[224u + lane];
      sum29 = tile[232u + lane];
      sum30 = tile[240u + lane];
      sum31 = tile[248u + lane];
    }
  }
  for (var k = 0u; k < params.k; k++) {
    let bk = b[b0];
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
  tile[0u + lane] = sum0;
  tile[8u + lane] = sum1;
  tile[16u + lane] = sum2;
  tile[24u + lane] = sum3;
  tile[32u + lane] = sum4;
  tile[40u + lane] = sum5;
  tile[48u + lane] = sum6;
  tile[56u + lane] = sum7;
  if (ROWS > 8u) {
    tile[64u + lane] = sum8;
    tile[72u + lane] = sum9;
    tile[80u + lane] = sum10;
    tile[88u + lane] = sum11;
    tile[96u + lane] = sum12;
    tile[104u + lane] = sum13;
    tile[112u + lane] = sum14;
    tile[120u + lane] = sum15;
    tile[128u + lane] = sum16;
    tile[136u + lane] = sum17;
    tile[144u + lane] = sum18;
    tile[152u + lane] = sum19;
    tile[160u + lane] = sum20;
    tile[168u + lane] = sum21;
    tile[176u + lane] = sum22;
    tile[184u + lane] = sum23;
    tile[192u + lane] = sum24;
    tile[200u + lane] = sum25;
    tile[208u + lane] = sum26;
    tile[216u + lane] = sum27;
    tile[224u + lane] = sum28;
    tile[232u + lane] = sum29;
    tile[240u + lane] = sum30;
    tile[248u + lane] = sum31;
  }
  if (column >= columns) { return; }
  let rows = min(ROWS, params.m - row0);
  for (var r = 0u; r < rows; r++) {
    let at = (params.c_offset + (row0 + r) * params.c_row) / 4u + column;
    store(at, tile[r * LANES + lane]);
  }
}
