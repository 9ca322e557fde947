// partials[partials_offset + g] = sum of x^2 over the vec4s that workgroup g meets striding over all of x.
// Grid: 64 workgroups of 64 threads whatever the count is, so that the sum repeats bit for bit.

//#include "parts/tree.wgsl"

alias Sum = f32;

const THREADS = 64u;
const GROUPS = 64u;

struct Params { count: u32, partials_offset: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> partials: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  var squares = vec4f();
  for (var i = group.x * THREADS + lane; i < params.count / 4u; i += THREADS * GROUPS) {
    let value = x[i];
    squares += value * value;
  }
  sum_threads(lane, dot(squares, vec4f(1.0)));
  if (lane == 0u) {
    partials[params.partials_offset + group.x] = shared_sums[0];
  }
}
