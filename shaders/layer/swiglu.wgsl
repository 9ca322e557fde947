// result = silu(gate) * up. gate_up [rows, 2 width] = [gate | up], result [rows, width]. Grid: a thread per vec4.

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> gate_up: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 64u;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = (group.y * groups.x + group.x) * WORKGROUP + lane;
  let quads = params.width / 4u;
  if (index >= params.rows * quads) {
    return;
  }
  let at = index + index / quads * quads;
  let gate = gate_up[at];
  result[index] = gate / (1.0 + exp(-gate)) * gate_up[at + quads];
}
