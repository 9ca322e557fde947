// Applies the moments of advantage/sums.wgsl in place.
//   0 whiten  (x - mean) / (sqrt(variance + a) + b), variance = squares / (n - ddof), 0 where n <= ddof; mean kept
//             without SHIFT
//   1 scale   x count / max(nonzero, 1) / b
// Values of weight 0 become 0 with MASKED.
// Grid: 64 workgroups of 64, striding.

//#include "advantage/parts/moments.wgsl"

override MODE: u32 = 0u;
override SHIFT: bool = true;
override MASKED: bool = false;

struct Params { count: u32, ddof: f32, variance_epsilon: f32, deviation_epsilon: f32 }

@group(0) @binding(0) var<storage, read> weights: array<vec4u>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> values: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> shared_found: vec2f;

// What is subtracted, and what the rest is multiplied by.
fn shift_and_scale() -> vec2f {
  var total = vec3(0.0);
  for (var k = 0u; k < GROUPS; k++) { total = merge(total, vec3(sums[3u * k], sums[3u * k + 1u], sums[3u * k + 2u])); }
  let n = total.x;
  if (MODE == 1u) { return vec2(0.0, f32(params.count) / max(n, 1.0) / params.deviation_epsilon); }
  let centre = select(0.0, total.y, SHIFT);
  if (n <= params.ddof) { return vec2(centre, 0.0); }
  let deviation = sqrt(total.z / (n - params.ddof) + params.variance_epsilon);
  return vec2(centre, 1.0 / (deviation + params.deviation_epsilon));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(local_invocation_index) thread: u32) {
  // One invocation adds the partial sums for its workgroup: all of them would read more than the data.
  if (thread == 0u) { shared_found = shift_and_scale(); }
  let found = workgroupUniformLoad(&shared_found);
  let centre = found.x;
  let scale = found.y;
  let vectors = (params.count + 3u) / 4u;
  let span = span_of(id.x, vectors);
  for (var i = span.first; i < span.end; i += LANES) {
    var kept = vec4(true);
    if (MASKED) { kept = weights[i] != vec4(0u); }
    values[i] = select(vec4(0.0), (values[i] - centre) * scale, kept);
  }
}
