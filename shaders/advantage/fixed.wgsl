// (s - mean) / (deviation + eps), s - mean, or s - mean of the others, for groups of VECTORS x 4 rows that lie together.
// The group stays in registers: one read and one write of every score. Scores are distances from the group's first, so
// that equal ones give exactly 0.
// Grid: one invocation per group, striding.

const THREADS = 64u;

override VECTORS: u32 = 2u;
override MODE: u32 = 0u;
override BY_DEVIATION: bool = true;

struct Params { groups: u32, ddof: f32, epsilon: f32 }

@group(0) @binding(0) var<storage, read> scores: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> advantages: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let n = f32(4u * VECTORS);
  for (var group = id.x; group < params.groups; group += groups.x * THREADS) {
    var group_scores: array<vec4f, 8>;
    var sum = vec4(0.0);
    let shift = scores[group * VECTORS].x;
    for (var k = 0u; k < VECTORS; k++) {
      group_scores[k] = scores[group * VECTORS + k] - shift;
      sum += group_scores[k];
    }
    let mean = dot(sum, vec4(1.0)) / n;
    var factor = 1.0;
    if (MODE == 1u) { factor = n / (n - 1.0); }
    if (MODE == 0u && BY_DEVIATION) {
      var squares = 0.0;
      for (var k = 0u; k < VECTORS; k++) {
        let x = group_scores[k] - mean;
        squares += dot(x, x);
      }
      factor = 1.0 / (sqrt(squares / (n - params.ddof)) + params.epsilon);
    }
    for (var k = 0u; k < VECTORS; k++) { advantages[group * VECTORS + k] = (group_scores[k] - mean) * factor; }
  }
}
