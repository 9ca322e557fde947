// C = alpha A B (+ addend) of many rows, for CPU drivers whose subgroups are 8 lanes wide. No sums that continue (params.mode).
//
// A [m, k] by the strides (a_row, a_k), so either orientation. B [k, n] and C [m, n] row-major, in vec4. Blocks as in
// matmul/subgroup but of 64 columns, with two steps along k a turn: less is read and moved for each product, while the loop
// still fits the processor's instruction cache (four steps do not). Sums have the same order, hence the same bits.
// Grid: x = column blocks, y = row blocks.

enable subgroups;

//#include "matmul/parts/product.wgsl"
//#include "matmul/parts/queue.wgsl"

alias A = f32;
alias B = vec4f;
alias C = vec4f;
// Columns 4l..4l+3 and 32+4l..32+4l+3 of lane l.
alias Sums = mat2x4f;

const ROWS = 32u;

fn added(sums: Sums, a: vec2f, x: Sums, y: Sums) -> Sums {
  return sums + a.x * x + a.y * y;
}

// A row of A at two k. Behind the last k is a zero.
fn load_two(at: u32, is_pair: bool) -> vec2f {
  return vec2f(a[at], select(0.0, a[at + params.a_k], is_pair));
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  let column = block.x * 2u * LANES + lane;
  let row0 = block.y * ROWS;
  let last = params.m - 1u;
  var a0 = params.a_offset + min(row0 + 0u + lane, last) * params.a_row;
  var a1 = params.a_offset + min(row0 + 8u + lane, last) * params.a_row;
  var a2 = params.a_offset + min(row0 + 16u + lane, last) * params.a_row;
  var a3 = params.a_offset + min(row0 + 24u + lane, last) * params.a_row;
  let last_column = params.n / 4u - 1u;
  var left = params.b_offset / 4u + min(column, last_column);
  var right = params.b_offset / 4u + min(column + LANES, last_column);
  let b_step = params.b_k / 4u;
  let a_step = 2u * params.a_k;
  for (var k = 0u; k < params.k; k += 2u) {
    let is_pair = k + 1u < params.k;
    let x = Sums(b[left], b[right]);
    // Behind the last k, that row again: times zero it adds nothing. Where it is infinite, the sum is NaN in place of infinite.
    let next = select(0u, b_step, is_pair);
    let y = Sums(b[left + next], b[right + next]);
    left += 2u * b_step;
    right += 2u * b_step;
    let rows0 = load_two(a0, is_pair);
    a0 += a_step;
    let rows1 = load_two(a1, is_pair);
    a1 += a_step;
    let rows2 = load_two(a2, is_pair);
    a2 += a_step;
    let rows3 = load_two(a3, is_pair);
    a3 += a_step;
    sum0 = added(sum0, subgroupBroadcast(rows0, 0u), x, y);
    sum1 = added(sum1, subgroupBroadcast(rows0, 1u), x, y);
    sum2 = added(sum2, subgroupBroadcast(rows0, 2u), x, y);
    sum3 = added(sum3, subgroupBroadcast(rows0, 3u), x, y);
    sum4 = added(sum4, subgroupBroadcast(rows0, 4u), x, y);
    sum5 = added(sum5, subgroupBroadcast(rows0, 5u), x, y);
    sum6 = added(sum6, subgroupBroadcast(rows0, 6u), x, y);
    sum7 = added(sum7, subgroupBroadcast(rows0, 7u), x, y);
    sum8 = added(sum8, subgroupBroadcast(rows1, 0u), x, y);
    sum9 = added(sum9, subgroupBroadcast(rows1, 1u), x, y);
    sum10 = added(sum10, subgroupBroadcast(rows1, 2u), x, y);
    sum11 = added(sum11, subgroupBroadcast(rows1, 3u), x, y);
    sum12 = added(sum12, subgroupBroadcast(rows1, 4u), x, y);
    sum13 = added(sum13, subgroupBroadcast(rows1, 5u), x, y);
    sum14 = added(sum14, subgroupBroadcast(rows1, 6u), x, y);
    sum15 = added(sum15, subgroupBroadcast(rows1, 7u), x, y);
    sum16 = added(sum16, subgroupBroadcast(rows2, 0u), x, y);
    sum17 = added(sum17, subgroupBroadcast(rows2, 1u), x, y);
    sum18 = added(sum18, subgroupBroadcast(rows2, 2u), x, y);
    sum19 = added(sum19, subgroupBroadcast(rows2, 3u), x, y);
    sum20 = added(sum20, subgroupBroadcast(rows2, 4u), x, y);
    sum21 = added(sum21, subgroupBroadcast(rows2, 5u), x, y);
    sum22 = added(sum22, subgroupBroadcast(rows2, 6u), x, y);
    sum23 = added(sum23, subgroupBroadcast(rows2, 7u), x, y);
    sum24 = added(sum24, subgroupBroadcast(rows3, 0u), x, y);
    sum25 = added(sum25, subgroupBroadcast(rows3, 1u), x, y);
    sum26 = added(sum26, subgroupBroadcast(rows3, 2u), x, y);
    sum27 = added(sum27, subgroupBroadcast(rows3, 3u), x, y);
    sum28 = added(sum28, subgroupBroadcast(rows3, 4u), x, y);
    sum29 = added(sum29, subgroupBroadcast(rows3, 5u), x, y);
    sum30 = added(sum30, subgroupBroadcast(rows3, 6u), x, y);
    sum31 = added(sum31, subgroupBroadcast(rows3, 7u), x, y);
  }
  let end = min(row0 + ROWS, params.m);
  for (var first = row0; first < end; first += QUEUE) {
    for (var row = first; row < min(first + QUEUE, end); row++) {
      if (column <= last_column) { store(row, column, sum0[0]); }
      if (column + LANES <= last_column) { store(row, column + LANES, sum0[1]); }
      push(Sums());
    }
    next_rows();
  }
}
