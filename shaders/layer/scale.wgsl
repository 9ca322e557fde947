// x *= scale, in place. x [length] in vec4s. Grid: a thread per vec4.

//#include "parts/threads.wgsl"

struct Params { length: u32, scale: f32 }

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  if (index < params.length / 4u) { x[index] *= params.scale; }
}
