// Partial sums for whitening, GROUPS triples {weights, weight x, weight (x - mean)^2} in `sums`.
//   pass 0  the first two; pass 1  the third, with the mean of pass 0
// weight: u32 per value (trained tokens of a row, or the mask), or 1. NONZERO counts x != 0 instead of weighing.
// Grid: GROUPS workgroups whatever the count is, so that sums are added in the same order on every device.

//#include "parts/tree.wgsl"
//#include "advantage/parts/moments.wgsl"

alias Sum = vec2f;

override PASS: u32 = 0u;
override WEIGHTED: bool = true;
override NONZERO: bool = false;

struct Params { count: u32, count_epsilon: f32 }

@group(0) @binding(0) var<storage, read> values: array<vec4f>;
@group(0) @binding(1) var<storage, read> weights: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> shared_mean: f32;

fn mean() -> f32 {
  var sum = vec2(0.0);
  for (var k = 0u; k < GROUPS; k++) { sum += vec2(sums[3u * k], sums[3u * k + 1u]); }
  return sum.y / (sum.x + params.count_epsilon);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  var centre = 0.0;
  // One invocation adds the partial sums for its workgroup: all of them would read more than the data.
  if (PASS == 1u) {
    if (thread == 0u) { shared_mean = mean(); }
    centre = workgroupUniformLoad(&shared_mean);
  }
  var sum = vec2(0.0);
  let vectors = (params.count + 3u) / 4u;
  let span = span_of(group.x * THREADS + thread, vectors);
  for (var i = span.first; i < span.end; i += LANES) {
    let x = values[i];
    var weight = vec4(1.0);
    if (WEIGHTED) { weight = vec4f(weights[i]); }
    if (NONZERO) { weight = select(vec4(0.0), vec4(1.0), x != vec4(0.0)); }
    weight = select(vec4(0.0), weight, vec4(4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(params.count));
    let d = select(vec4(0.0), x - centre, weight != vec4(0.0));
    if (PASS == 0u) {
      sum += vec2(dot(weight, vec4(1.0)), dot(weight, d));
    } else {
      sum += vec2(dot(weight, d * d), 0.0);
    }
  }
  sum_threads(thread, sum);
  if (thread == 0u) {
    let total = shared_sums[0];
    if (PASS == 0u) {
      sums[3u * group.x] = total.x;
      sums[3u * group.x + 1u] = total.y;
    } else {
      sums[3u * group.x + 2u] = total.x;
    }
  }
}
