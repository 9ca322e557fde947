// The sums of a block of C by one subgroup of 8 lanes: lane l owns columns 4l..4l+3 of 32, and 8 or 32 rows.
// They are variables, because this kind of driver keeps arrays in memory. They enter and leave through workgroup memory,
// each lane by its own slots: no barrier, and a small epilogue to compile. A kernel reads C as vec4f.

// Of a block: 8 or 32. The sums of rows beyond are left out.
override ROWS: u32 = 32u;

const LANES = 8u;

var<workgroup> tile: array<vec4f, 256>;

var<private> sum0: vec4f;
var<private> sum1: vec4f;
var<private> sum2: vec4f;
var<private> sum3: vec4f;
var<private> sum4: vec4f;
var<private> sum5: vec4f;
var<private> sum6: vec4f;
var<private> sum7: vec4f;
var<private> sum8: vec4f;
var<private> sum9: vec4f;
var<private> sum10: vec4f;
var<private> sum11: vec4f;
var<private> sum12: vec4f;
var<private> sum13: vec4f;
var<private> sum14: vec4f;
var<private> sum15: vec4f;
var<private> sum16: vec4f;
var<private> sum17: vec4f;
var<private> sum18: vec4f;
var<private> sum19: vec4f;
var<private> sum20: vec4f;
var<private> sum21: vec4f;
var<private> sum22: vec4f;
var<private> sum23: vec4f;
var<private> sum24: vec4f;
var<private> sum25: vec4f;
var<private> sum26: vec4f;
var<private> sum27: vec4f;
var<private> sum28: vec4f;
var<private> sum29: vec4f;
var<private> sum30: vec4f;
var<private> sum31: vec4f;

// Adds the products at one k: four columns of B by the rows that eight lanes read, one each, handed round by broadcast.
fn add_products(bk: vec4f, rows0: f32, rows1: f32, rows2: f32, rows3: f32) {
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

// Lets the sums start at what C holds, if they continue.
fn start_sums(row0: u32, column: u32, lane: u32) {
  if (!continues()) { return; }
  let last = params.m - 1u;
  for (var r = 0u; r < ROWS; r++) {
    let at = (params.c_offset + min(row0 + r, last) * params.c_row) / 4u;
    tile[r * LANES + lane] = c[at + min(column, params.n / 4u - 1u)];
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

fn store_sums(row0: u32, column: u32, lane: u32) {
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
  if (column >= params.n / 4u) { return; }
  let rows = min(ROWS, params.m - row0);
  for (var r = 0u; r < rows; r++) {
    let at = (params.c_offset + (row0 + r) * params.c_row) / 4u + column;
    store(at, tile[r * LANES + lane]);
  }
}
