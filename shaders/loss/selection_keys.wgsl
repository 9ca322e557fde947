// A key per token by which clip_cov and kl_cov choose: the larger, the earlier. 0 = cannot be chosen.
//   cov = (A - mean A)(logprob - mean logprob)
//   largest: bits of cov, reordered so that u32 order is float order
//   random:  a hash of the token's index where lower < cov < upper and the token is not clipped already
// Grid: 64 workgroups of 256, striding.

//#include "parts/spans.wgsl"
//#include "loss/parts/advantages.wgsl"

const THREADS = 256u;
const GROUPS = 64u;
const LANES = 32u;

override RANDOM: bool = false;
override OLD: bool = true;

struct Params { tokens: u32, row_stride: u32, seed: u32, count: f32, lower: f32, upper: f32, low: f32, high: f32 }

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> old_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(4) var<storage, read> advantages: array<f32>;
@group(0) @binding(5) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(6) var<storage, read_write> scratch: array<f32>;
@group(0) @binding(7) var<storage, read_write> keys: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

// PCG's output function.
fn hash(t: u32) -> u32 {
  let state = (t ^ (params.seed * 0x9e3779b9u)) * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

fn ordered(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) != 0u);
}

fn key(t: u32, mean: vec2f) -> u32 {
  let a = advantage(t);
  let cov = (a - mean.x) * (logprobs[t] - mean.y);
  if (!RANDOM) { return max(ordered(cov), 1u); }
  let r = select(1.0, exp(logprobs[t] - old_logprobs[t]), OLD);
  let clipped = -a * clamp(r, params.low, params.high) > -a * r;
  return select(0u, max(hash(t), 1u), cov > params.lower && cov < params.upper && !clipped);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  var mean = vec2(0.0);
  for (var k = 0u; k < GROUPS; k++) { mean += vec2(scratch[2u * k], scratch[2u * k + 1u]); }
  mean /= params.count;
  let span = span_of(group.x * THREADS + thread, params.tokens);
  for (var t = span.first; t < span.end; t += LANES) {
    keys[t] = 0u;
    if (mask[t] != 0u) { keys[t] = key(t, mean); }
  }
}
