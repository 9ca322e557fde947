// y[c, r] = x[r, c]. x [rows, columns], y [columns, rows], each from its offset on, rows a stride apart.
// Grid: a thread per (four rows, column): lanes read side by side, and write runs of four.

struct Params {
  rows: u32,
  columns: u32,
  x_offset: u32,
  x_stride: u32,
  y_offset: u32,
  y_stride: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 64u;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = (group.y * groups.x + group.x) * WORKGROUP + lane;
  let column = index % params.columns;
  let row = index / params.columns * 4u;
  let end = min(row + 4u, params.rows);
  for (var r = row; r < end; r++) {
    y[params.y_offset + column * params.y_stride + r] = x[params.x_offset + r * params.x_stride + column];
  }
}
