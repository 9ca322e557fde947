// result[c] (+)= sum over rows of x[row, c]. x [rows, width]. Grid: a thread per vec4 of columns.

//#include "parts/threads.wgsl"

struct Params { rows: u32, width: u32, accumulate: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  if (index >= quads) { return; }
  var sum = vec4f();
  for (var row = 0u; row < params.rows; row++) {
    sum += x[row * quads + index];
  }
  if (params.accumulate != 0u) {
    sum += result[index];
  }
  result[index] = sum;
}
