// Partial sums of advantage and log-prob over trained tokens, for the covariance losses.
// scratch: GROUPS pairs (sum A, sum logprob). Grid: GROUPS workgroups whatever T is.

const THREADS = 256u;
const GROUPS = 64u;
// Invocations that walk one contiguous span together; see loss/policy.wgsl.
const LANES = 32u;

override TOKEN_ADVANTAGE: bool = false;

struct Params {
  tokens: u32,
  row_stride: u32,
}

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(3) var<storage, read> advantages: array<f32>;
@group(0) @binding(4) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(5) var<storage, read_write> scratch: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn advantage(t: u32) -> f32 {
  if (TOKEN_ADVANTAGE) { return advantages[t]; }
  return workspace[params.row_stride + row_of_token[t]];
}

var<workgroup> shared_sums: array<vec2<f32>, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var sum = vec2(0.0);
  let span = (params.tokens + THREADS * GROUPS - 1u) / (THREADS * GROUPS) * LANES;
  let first = (group.x * THREADS + thread) / LANES * span;
  for (var t = first + thread % LANES; t < min(first + span, params.tokens); t += LANES) {
    if (mask[t] != 0u) { sum += vec2(advantage(t), logprobs[t]); }
  }
  shared_sums[thread] = sum;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { shared_sums[thread] += shared_sums[thread + half]; }
  }
  if (thread == 0u) {
    scratch[2u * group.x] = shared_sums[0].x;
    scratch[2u * group.x + 1u] = shared_sums[0].y;
  }
}
