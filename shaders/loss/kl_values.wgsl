// KL estimates per token, their slopes and their aggregated sum.
//   values_t = K(logprob - ref), dlogprobs_t = v_t K', both 0 where mask = 0; partials: sums of v_t K and of K
//   v_t = weight, or the row's entry in `row_weights`
// Kinds and bounds as in loss/policy.wgsl. Grid: GROUPS workgroups whatever T is.

const THREADS = 256u;
const GROUPS = 64u;
// Invocations that walk one contiguous span together; see loss/policy.wgsl.
const LANES = 32u;
const MAX_LOG_RATIO = 20.0;

// Bits 0-2: 1 = k1, 2 = |k1|, 3 = k2, 4 = k3. Bit 3: slope of k2.
override KL: u32 = 1u;
override ROW_WEIGHTED: bool = false;

struct Params {
  tokens: u32,
  weight: f32,
  bound: f32,
}

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> ref_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(4) var<storage, read> row_weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> values: array<f32>;
@group(0) @binding(6) var<storage, read_write> dlogprobs: array<f32>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

// e^k - 1 without cancellation near 0, where most tokens are.
fn expm1_small(k: f32) -> f32 {
  let series = k * (1.0 + k * (0.5 + k * (1.0 / 6.0 + k * (1.0 / 24.0 + k * (1.0 / 120.0)))));
  return select(exp(k) - 1.0, series, abs(k) < 0.1);
}

fn estimate(x: f32) -> vec2<f32> {
  let kind = KL & 7u;
  var term = vec2(x, 1.0);
  if (kind == 2u) { term = vec2(abs(x), sign(x)); }
  if (kind == 3u) { term = vec2(0.5 * x * x, x); }
  if (kind == 4u) {
    let k = clamp(-x, -MAX_LOG_RATIO, MAX_LOG_RATIO);
    let v = expm1_small(k) - k;
    term = vec2(min(v, params.bound), select(0.0, -expm1_small(k), v <= params.bound && abs(x) <= MAX_LOG_RATIO));
  }
  if ((KL & 8u) != 0u) { term.y = x; }
  return term;
}

var<workgroup> shared_sums: array<vec2<f32>, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var sum = vec2(0.0);
  let span = (params.tokens + THREADS * GROUPS - 1u) / (THREADS * GROUPS) * LANES;
  let first = (group.x * THREADS + thread) / LANES * span;
  for (var t = first + thread % LANES; t < min(first + span, params.tokens); t += LANES) {
    var weight = params.weight;
    if (ROW_WEIGHTED) { weight = row_weights[row_of_token[t]]; }
    let trained = mask[t] != 0u;
    let term = estimate(logprobs[t] - ref_logprobs[t]);
    sum += select(vec2(0.0), vec2(weight * term.x, term.x), trained);
    values[t] = select(0.0, term.x, trained);
    dlogprobs[t] = select(0.0, weight * term.y, trained);
  }
  shared_sums[thread] = sum;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { shared_sums[thread] += shared_sums[thread + half]; }
  }
  if (thread == 0u) {
    partials[2u * group.x] = shared_sums[0].x;
    partials[2u * group.x + 1u] = shared_sums[0].y;
  }
}
