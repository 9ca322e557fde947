// Moments for whitening, GROUPS triples {weights, mean, weight (x - mean)^2} in `sums`, in one pass.
// weight: u32 per value (trained tokens of a row, or the mask), or 1. NONZERO counts x != 0 instead of weighing.
// Grid: GROUPS workgroups whatever the count is, so that sums are added in the same order on every device.
// Source: Chan, Golub, LeVeque 1979.

//#include "parts/halves.wgsl"
//#include "advantage/parts/moments.wgsl"

override WEIGHTED: bool = true;
override NONZERO: bool = false;

struct Params { count: u32 }

@group(0) @binding(0) var<storage, read> values: array<vec4f>;
@group(0) @binding(1) var<storage, read> weights: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> parts: array<vec3f, THREADS>;

fn weights_of(i: u32, x: vec4f) -> vec4f {
  var weight = vec4(1.0);
  if (WEIGHTED) { weight = vec4f(weights[i]); }
  if (NONZERO) { weight = select(vec4(0.0), vec4(1.0), x != vec4(0.0)); }
  return select(vec4(0.0), weight, vec4(4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(params.count));
}

// The moments of a thread's span: four lanes of a vector, merged at its end.
fn moments_of(span: Span) -> vec3f {
  var count = vec4(0.0);
  var mean = vec4(0.0);
  var squares = vec4(0.0);
  for (var i = span.first; i < span.end; i += LANES) {
    let x = values[i];
    let weight = weights_of(i, x);
    let weighs = weight != vec4(0.0);
    let is_first = weighs & (count == vec4(0.0));
    count += weight;
    let apart = select(vec4(0.0), x - mean, weighs);
    // Not x weight / count for the first: a GPU may divide a number by itself to another than 1.
    mean = select(mean + apart * (weight / max(count, vec4(1.0))), x, is_first);
    squares += weight * apart * select(vec4(0.0), x - mean, weighs);
  }
  let lower = merge(vec3(count.x, mean.x, squares.x), vec3(count.y, mean.y, squares.y));
  let upper = merge(vec3(count.z, mean.z, squares.z), vec3(count.w, mean.w, squares.w));
  return merge(lower, upper);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  parts[thread] = moments_of(span_of(group.x * THREADS + thread, (params.count + 3u) / 4u));
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (thread < half) { parts[thread] = merge(parts[thread], parts[thread + half]); }
  }
  if (thread == 0u) {
    for (var k = 0u; k < 3u; k++) { sums[3u * group.x + k] = parts[0][k]; }
  }
}
