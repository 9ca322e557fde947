// The sums of a block of C by one subgroup of 8 lanes: lane l owns columns 4l..4l+3 of 32, and 8 or 32 rows.
// They are variables, because this kind of driver keeps arrays in memory. They enter and leave one row at a time, as a queue:
// this driver makes every access to memory a loop over lanes, and takes many seconds to compile a kernel with dozens of them.
// A kernel reads C as vec4f.

// Of a block: 8 or 32. The sums of rows beyond are left out.
override ROWS: u32 = 32u;

const LANES = 8u;
const C_WIDTH = 4u;
// Rows that move one by one; the rest move by as many.
const QUEUE = 8u;

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

// Takes the first row's sums off the queue and puts `last` at its end.
fn push(last: vec4f) {
  sum0 = sum1;
  sum1 = sum2;
  sum2 = sum3;
  sum3 = sum4;
  sum4 = sum5;
  sum5 = sum6;
  sum6 = sum7;
  sum7 = last;
}

// Brings the next eight rows to the queue.
fn next_rows() {
  if (ROWS > QUEUE) {
    sum0 = sum8;
    sum1 = sum9;
    sum2 = sum10;
    sum3 = sum11;
    sum4 = sum12;
    sum5 = sum13;
    sum6 = sum14;
    sum7 = sum15;
    sum8 = sum16;
    sum9 = sum17;
    sum10 = sum18;
    sum11 = sum19;
    sum12 = sum20;
    sum13 = sum21;
    sum14 = sum22;
    sum15 = sum23;
    sum16 = sum24;
    sum17 = sum25;
    sum18 = sum26;
    sum19 = sum27;
    sum20 = sum28;
    sum21 = sum29;
    sum22 = sum30;
    sum23 = sum31;
  }
}

// Puts the queue back and leaves its rows to those before.
fn rows_before() {
  if (ROWS > QUEUE) {
    sum31 = sum23;
    sum30 = sum22;
    sum29 = sum21;
    sum28 = sum20;
    sum27 = sum19;
    sum26 = sum18;
    sum25 = sum17;
    sum24 = sum16;
    sum23 = sum15;
    sum22 = sum14;
    sum21 = sum13;
    sum20 = sum12;
    sum19 = sum11;
    sum18 = sum10;
    sum17 = sum9;
    sum16 = sum8;
    sum15 = sum7;
    sum14 = sum6;
    sum13 = sum5;
    sum12 = sum4;
    sum11 = sum3;
    sum10 = sum2;
    sum9 = sum1;
    sum8 = sum0;
  }
}

// Lets the sums start at what C holds, if they continue.
fn start_sums(row0: u32, column: u32, lane: u32) {
  if (!continues()) { return; }
  let last = params.m - 1u;
  for (var end = hidden(ROWS); end > 0u; end -= QUEUE) {
    rows_before();
    for (var r = end - QUEUE; r < end; r++) {
      let at = (params.c_offset + min(row0 + r, last) * params.c_row) / 4u;
      push(c[at + min(column, params.n / 4u - 1u)]);
    }
  }
}

fn store_sums(row0: u32, column: u32, lane: u32) {
  if (column >= params.n / 4u) { return; }
  let end = min(row0 + ROWS, params.m);
  for (var first = row0; first < end; first += QUEUE) {
    for (var row = first; row < min(first + QUEUE, end); row++) {
      store(row, column, sum0);
      push(vec4f());
    }
    next_rows();
  }
}
