// The work of matmul/subgroup, by a kernel that defines read_b(at), the vec4 at 4 at, and start_reading(lane).

//#include "matmul/parts/product.wgsl"
//#include "matmul/parts/lanes.wgsl"

override INPUT: u32 = 0u;

const SWIGLU = 1u;

fn load(at: u32) -> f32 {
  if (INPUT == SWIGLU) {
    let gate = a[at];
    return gate / (1.0 + exp(-gate)) * a[at + params.k];
  }
  return a[at];
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  start_reading(lane);
  let column = block.x * LANES + lane;
  let row0 = block.y * ROWS;
  let last = params.m - 1u;
  var a0 = params.a_offset + min(row0 + 0u + lane, last) * params.a_row;
  var a1 = params.a_offset + min(row0 + 8u + lane, last) * params.a_row;
  var a2 = params.a_offset + min(row0 + 16u + lane, last) * params.a_row;
  var a3 = params.a_offset + min(row0 + 24u + lane, last) * params.a_row;
  var b0 = params.b_offset / 4u + min(column, params.n / 4u - 1u);
  let bStep = params.b_k / 4u;
  start_sums(row0, column, lane);
  for (var k = 0u; k < params.k; k++) {
    let bk = read_b(b0);
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
    add_products(bk, rows0, rows1, rows2, rows3);
  }
  store_sums(row0, column, lane);
}
