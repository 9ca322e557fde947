// The sums of a block of C by one subgroup of 8 lanes: lane l owns columns 4l..4l+3 of 32, and 8 or 32 rows.
// A kernel reads C as vec4f.

//#include "matmul/parts/queue.wgsl"

// Of a block: 8 or 32. The sums of rows beyond are left out.
override ROWS: u32 = 32u;

alias Sums = vec4f;

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
