// y = x in vec4s, grid-stride over few workgroups: what the memory gives a kernel that does nothing else.

struct Params { quads: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 64u;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  for (var i = id.x; i < params.quads; i += groups.x * WORKGROUP) {
    y[i] = x[i];
  }
}
