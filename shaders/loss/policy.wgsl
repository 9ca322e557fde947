// Policy loss in one pass: value, d(loss)/d(logprob) and every metric.
//
//   loss       = sum_t w_t L_t isw_t + kl_coef sum_t v_t K_t       t over trained tokens (mask = 1)
//   dlogprobs  = w_t L'_t isw_t + kl_coef v_t K'_t                  0 where mask = 0
//   w_t, v_t   = weights of the aggregation (loss, KL): one number, or column 0 of the row table
//
// Streams are [T] in vec4s. Old log-probs, per-token advantages, importance weights and reference log-probs are
// optional: an override says which slot holds each. A fourth one rides in `dlogprobs`, which is read before written.
// `workspace`: row table in columns of `row_stride` floats {weight, advantage, a, b}, then GROUPS x 8 partial sums,
// then the selection threshold (u32 bits).
// Grid: GROUPS workgroups whatever T is, so that sums are added in the same order on every device.
// The function token_loss of a loss (src/engine/algorithm/loss/form.ts) is joined to this frame, with the Settings that it reads.

//#include "loss/parts/kl.wgsl"
//#include "parts/spans.wgsl"
//#include "parts/halves.wgsl"

const THREADS = 64u;
const GROUPS = 256u;
const LANES = 16u;

override OLD: u32 = 0u;
override ADVANTAGE: u32 = 0u;
override WEIGHT: u32 = 0u;
override REF: u32 = 0u;
// Slot of the selection keys (clip_cov, kl_cov): a token is selected where its key reaches the threshold.
override SELECT: u32 = 0u;
// False where every token is trained on: the mask is not read.
override MASKED: bool = true;
override ROW_WEIGHTED: bool = false;
override KL_ROW_WEIGHTED: bool = false;
override ROW_ADVANTAGE: bool = false;
override ROW_COUPLED: bool = false;
// False where the row statistic holds the importance weights of the slopes already.
override WEIGHTED_SLOPE: bool = true;

struct Params {
  tokens: u32,
  row_stride: u32,
  partials_at: u32,
  threshold_at: u32,
  weight: f32,
  kl_weight: f32,
  kl_coef: f32,
  kl_bound: f32,
  settings: Settings,
}

@group(0) @binding(0) var<storage, read> logprobs: array<vec4f>;
@group(0) @binding(1) var<storage, read> mask: array<vec4u>;
@group(0) @binding(2) var<storage, read> row_of_token: array<vec4u>;
@group(0) @binding(3) var<storage, read> slot1: array<vec4f>;
@group(0) @binding(4) var<storage, read> slot2: array<vec4f>;
@group(0) @binding(5) var<storage, read> slot3: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(7) var<storage, read_write> dlogprobs: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

// One trained token. `d` = logprob - old. `a`, `b`: the row statistic of its row.
struct Token { logprob: f32, d: f32, advantage: f32, is_weight: f32, a: f32, b: f32 }

// Loss of one token, its slope in logprob, and three numbers that are averaged over trained tokens.
struct TokenLoss { value: f32, slope: f32, metrics: vec3f }

fn bounded(d: f32) -> f32 {
  return clamp(d, -MAX_LOG_RATIO, MAX_LOG_RATIO);
}

fn count(condition: bool) -> f32 {
  return select(0.0, 1.0, condition);
}

fn stream(slot: u32, i: u32, absent: vec4f) -> vec4f {
  if (slot == 1u) { return slot1[i]; }
  if (slot == 2u) { return slot2[i]; }
  if (slot == 3u) { return slot3[i]; }
  if (slot == 4u) { return dlogprobs[i]; }
  return absent;
}

// By bits: comparisons with NaN are not reliable in WGSL.
fn not_finite(x: vec4f) -> vec4<bool> {
  return (bitcast<vec4u>(x) & vec4(0x7f800000u)) == vec4(0x7f800000u);
}

fn count_lanes(lanes: vec4<bool>) -> u32 {
  let ones = select(vec4(0u), vec4(1u), lanes);
  return ones.x + ones.y + ones.z + ones.w;
}

// Numbers of four tokens' rows. Tokens lie by row, so that mostly one load serves all four.
fn gather(index: u32, rows: vec4u) -> vec4f {
  let start = index * params.row_stride;
  if (all(rows == rows.xxxx)) { return vec4(workspace[start + rows.x]); }
  return vec4(workspace[start + rows.x], workspace[start + rows.y], workspace[start + rows.z], workspace[start + rows.w]);
}

// a: loss and the three metrics. b: KL loss, KL values, trained tokens with a non-finite input.
var<private> sums_a: vec4f;
var<private> sums_b: vec4f;

// Adds one token to the sums and returns its gradient.
fn gradient(t: Token, weight: f32, kl_weight: f32, ref_logprob: f32, trained: bool) -> f32 {
  let loss = token_loss(t);
  var slope = weight * loss.slope * select(1.0, t.is_weight, WEIGHTED_SLOPE);
  let value = weight * t.is_weight * loss.value;
  sums_a += select(vec4(0.0), vec4(value, loss.metrics), trained);
  if (KL != 0u) {
    let kl = kl_estimate(t.logprob - ref_logprob, params.kl_bound);
    slope += params.kl_coef * kl_weight * kl.y;
    sums_b += select(vec4(0.0), vec4(kl_weight * kl.x, kl.x, 0.0, 0.0), trained);
  }
  return select(0.0, slope, trained);
}

var<workgroup> shared_a: array<vec4f, THREADS>;
var<workgroup> shared_b: array<vec4f, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let vectors = (params.tokens + 3u) / 4u;
  let span = span_of(group.x * THREADS + thread, vectors);
  for (var i = span.first; i < span.end; i += LANES) {
    let logprob = logprobs[i];
    let old = stream(OLD, i, logprob);
    let is_weight = stream(WEIGHT, i, vec4(1.0));
    let ref_logprob = stream(REF, i, logprob);
    var advantage = stream(ADVANTAGE, i, vec4(0.0));
    var weight = vec4(params.weight);
    var kl_weight = vec4(params.kl_weight);
    var a = vec4(0.0);
    var b = vec4(0.0);
    if (ROW_WEIGHTED || KL_ROW_WEIGHTED || ROW_ADVANTAGE || ROW_COUPLED) {
      let rows = row_of_token[i];
      if (ROW_WEIGHTED) { weight = gather(0u, rows); }
      if (KL_ROW_WEIGHTED) { kl_weight = gather(0u, rows); }
      if (ROW_ADVANTAGE) { advantage = gather(1u, rows); }
      if (ROW_COUPLED) {
        a = gather(2u, rows);
        b = gather(3u, rows);
      }
    }
    if (SELECT != 0u) {
      let key = bitcast<vec4u>(stream(SELECT, i, vec4(0.0)));
      a = select(vec4(0.0), vec4(1.0), key >= vec4(bitcast<u32>(workspace[params.threshold_at])));
    }
    var trained = vec4(4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(params.tokens);
    if (MASKED) { trained &= mask[i] != vec4(0u); }
    let broken = not_finite(logprob) | not_finite(old) | not_finite(advantage) | not_finite(is_weight) | not_finite(ref_logprob);
    sums_b.z += f32(count_lanes(broken & trained));
    let d = logprob - old;
    dlogprobs[i] = vec4(
      gradient(Token(logprob.x, d.x, advantage.x, is_weight.x, a.x, b.x), weight.x, kl_weight.x, ref_logprob.x, trained.x),
      gradient(Token(logprob.y, d.y, advantage.y, is_weight.y, a.y, b.y), weight.y, kl_weight.y, ref_logprob.y, trained.y),
      gradient(Token(logprob.z, d.z, advantage.z, is_weight.z, a.z, b.z), weight.z, kl_weight.z, ref_logprob.z, trained.z),
      gradient(Token(logprob.w, d.w, advantage.w, is_weight.w, a.w, b.w), weight.w, kl_weight.w, ref_logprob.w, trained.w),
    );
  }
  shared_a[thread] = sums_a;
  shared_b[thread] = sums_b;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (thread < half) {
      shared_a[thread] += shared_a[thread + half];
      shared_b[thread] += shared_b[thread + half];
    }
  }
  if (thread == 0u) {
    for (var k = 0u; k < 4u; k++) {
      workspace[params.partials_at + group.x * 8u + k] = shared_a[0][k];
      workspace[params.partials_at + group.x * 8u + 4u + k] = shared_b[0][k];
    }
  }
}
