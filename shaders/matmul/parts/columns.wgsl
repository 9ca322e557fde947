// The work of matmul/columns, by a kernel that defines read_b(at), the vec4 at 4 at, and start_reading(lane).

//#include "matmul/parts/product.wgsl"
//#include "matmul/parts/lanes.wgsl"

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  start_reading(lane);
  let column = block.x * LANES + lane;
  let row0 = block.y * ROWS;
  let last = params.m - 1u;
  let a0 = (params.a_offset + min(row0 + 0u + lane, last) * params.a_row) / 4u;
  let a1 = (params.a_offset + min(row0 + 8u + lane, last) * params.a_row) / 4u;
  let a2 = (params.a_offset + min(row0 + 16u + lane, last) * params.a_row) / 4u;
  let a3 = (params.a_offset + min(row0 + 24u + lane, last) * params.a_row) / 4u;
  let bStep = params.b_column / 4u;
  let b0 = params.b_offset / 4u + min(column, params.n / 4u - 1u) * params.b_column;
  start_sums(row0, column, lane);
  for (var i = 0u; i < params.k / 4u; i++) {
    let rows0 = a[a0 + i];
    var rows1 = vec4f();
    var rows2 = vec4f();
    var rows3 = vec4f();
    if (ROWS > 8u) {
      rows1 = a[a1 + i];
      rows2 = a[a2 + i];
      rows3 = a[a3 + i];
    }
    let x = read_b(b0 + i);
    let y = read_b(b0 + bStep + i);
    let z = read_b(b0 + 2u * bStep + i);
    let w = read_b(b0 + 3u * bStep + i);
    add_products(vec4f(x[0], y[0], z[0], w[0]), rows0[0], rows1[0], rows2[0], rows3[0]);
    add_products(vec4f(x[1], y[1], z[1], w[1]), rows0[1], rows1[1], rows2[1], rows3[1]);
    add_products(vec4f(x[2], y[2], z[2], w[2]), rows0[2], rows1[2], rows2[2], rows3[2]);
    add_products(vec4f(x[3], y[3], z[3], w[3]), rows0[3], rows1[3], rows2[3], rows3[3]);
  }
  store_sums(row0, column, lane);
}
