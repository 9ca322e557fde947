// Preference losses over pairs of packed rows (2i chosen, 2i + 1 rejected), or over labelled rows (kto).
// c, r = scores: sum of log-probs minus the reference's, or of log-probs (REFERENCE), divided by the tokens (MEAN); d = c - r,
// z = beta d - gamma, s the logistic function, e = smoothing.
//   0 sigmoid, simpo   -(1 - e) log s(z) - e log s(-z)
//   1 robust           (-(1 - e) log s(z) + e log s(-z)) / (1 - 2e)
//   2 hinge            max(0, 1 - z)
//   3 ipo              (d - 1 / (2 beta))^2
//   4 orpo             -beta log s(o), o = (c - log(1 - e^c)) - (r - log(1 - e^r))
//   5 kto              w s(-z) with z = beta (c - kl) where desirable, else z = beta (kl - c)
// and at the tokens of nll_mask of chosen rows, nll_scale times the negative log-likelihood.
// rows: [N, 4], a row's sums of log-probs, of log-ratios and of negative log-likelihoods, and the loss of its unit.
// Grid: one workgroup per unit, folded over y. Each sum is a fixed tree.
// See TRL's DPOTrainer, KTOTrainer, ORPOTrainer and CPOTrainer.

//#include "parts/groups.wgsl"
//#include "parts/tree.wgsl"
//#include "preference/parts/logistic.wgsl"

const THREADS = 64u;
const COLUMNS = 4u;
// The least normal float32.
const LEAST = 1.17549435e-38;

// log-probs, log-ratios, negative log-likelihoods, tokens.
alias Sum = vec4f;

override LOSS: u32 = 0u;
override REFERENCE: bool = true;
override MEAN: bool = false;

struct Params {
  units: u32,
  scale: f32,
  nll_scale: f32,
  beta: f32,
  smoothing: f32,
  gamma: f32,
  kl: f32,
  desirable: f32,
  undesirable: f32,
}

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> ref_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> nll_mask: array<u32>;
@group(0) @binding(4) var<storage, read> offsets: array<u32>;
@group(0) @binding(5) var<storage, read> labels: array<u32>;
@group(0) @binding(6) var<storage, read_write> rows: array<f32>;
@group(0) @binding(7) var<storage, read_write> dlogprobs: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

// A loss and its slopes in the two scores.
struct Pair { value: f32, chosen: f32, rejected: f32 }

// e^x - 1 for x <= 0, without cancellation near 0.
fn expm1_below(x: f32) -> f32 {
  let series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))));
  return select(exp(x) - 1.0, series, x > -0.1);
}

fn of_difference(value: f32, slope: f32) -> Pair {
  return Pair(value, slope, -slope);
}

fn sigmoid_loss(z: f32) -> Pair {
  let e = params.smoothing;
  let slope = e * logistic(z) - (1.0 - e) * logistic(-z);
  return of_difference((1.0 - e) * softplus(-z) + e * softplus(z), params.beta * slope);
}

fn robust_loss(z: f32) -> Pair {
  let e = params.smoothing;
  let whole = 1.0 - 2.0 * e;
  let slope = -e * logistic(z) - (1.0 - e) * logistic(-z);
  return of_difference(((1.0 - e) * softplus(-z) - e * softplus(z)) / whole, params.beta * slope / whole);
}

// The slope in the chosen score, -beta s(-o) / (1 - e^c) = -beta s(o) e^(r - c) / (1 - e^r), has a value at c = 0.
fn orpo_loss(chosen: f32, rejected: f32) -> Pair {
  let c = -expm1_below(chosen);
  let r = -expm1_below(rejected);
  let odds = chosen - rejected - (log(max(c, LEAST)) - log(r));
  let against = params.beta * logistic(-odds);
  let ahead = params.beta * logistic(odds) * exp(min(rejected - chosen, 0.0)) / r;
  let slope = select(against / max(c, LEAST), ahead, odds > 0.0);
  return Pair(params.beta * softplus(-odds), -slope, against / r);
}

fn kto_loss(score: f32, desirable: bool) -> Pair {
  let side = select(-1.0, 1.0, desirable);
  let weight = select(params.undesirable, params.desirable, desirable);
  let z = side * params.beta * (score - params.kl);
  return Pair(weight * logistic(-z), -side * weight * params.beta * logistic(z) * logistic(-z), 0.0);
}

fn pair_loss(unit: u32, chosen: f32, rejected: f32) -> Pair {
  let d = chosen - rejected;
  let z = params.beta * d - params.gamma;
  let off = d - 0.5 / params.beta;
  if (LOSS == 1u) { return robust_loss(z); }
  if (LOSS == 2u) { return of_difference(max(1.0 - z, 0.0), select(0.0, -params.beta, z < 1.0)); }
  if (LOSS == 3u) { return of_difference(off * off, 2.0 * off); }
  if (LOSS == 4u) { return orpo_loss(chosen, rejected); }
  if (LOSS == 5u) { return kto_loss(chosen, labels[unit] == 1u); }
  return sigmoid_loss(z);
}

fn term(t: u32, in_nll: bool) -> Sum {
  let logprob = logprobs[t];
  let ratio = select(0.0, logprob - ref_logprobs[t], REFERENCE);
  let nll = select(0.0, -logprob, in_nll && nll_mask[t] != 0u);
  return select(vec4f(), vec4f(logprob, ratio, 0.0, 1.0), mask[t] != 0u) + vec4f(0.0, 0.0, nll, 0.0);
}

fn sum_row(row: u32, thread: u32, in_nll: bool) -> Sum {
  var own = Sum();
  for (var t = offsets[row] + thread; t < offsets[row + 1u]; t += THREADS) { own += term(t, in_nll); }
  sum_threads(thread, own);
  workgroupBarrier();
  let sum = shared_sums[0];
  workgroupBarrier();
  return sum;
}

fn score_of(sum: Sum) -> f32 {
  let score = select(sum.x, sum.y, REFERENCE);
  return select(score, score / sum.w, MEAN);
}

fn store_row(row: u32, sum: Sum, value: f32) {
  rows[COLUMNS * row] = sum.x;
  rows[COLUMNS * row + 1u] = sum.y;
  rows[COLUMNS * row + 2u] = sum.z;
  rows[COLUMNS * row + 3u] = value;
}

fn write_gradient(row: u32, thread: u32, slope: f32, likelihood: f32) {
  for (var t = offsets[row] + thread; t < offsets[row + 1u]; t += THREADS) {
    dlogprobs[t] = select(0.0, slope, mask[t] != 0u) - select(0.0, likelihood, nll_mask[t] != 0u);
  }
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  let unit = group_index(group);
  let is_pair = LOSS != 5u;
  let inside = unit < params.units;
  let chosen = select(0u, select(unit, 2u * unit, is_pair), inside);
  let rejected = select(chosen, chosen + 1u, is_pair);
  let c = sum_row(chosen, thread, params.nll_scale > 0.0);
  let r = sum_row(rejected, thread, false);
  if (!inside) { return; }
  let loss = pair_loss(unit, score_of(c), score_of(r));
  let divisor = select(vec2f(1.0), vec2f(c.w, r.w), MEAN);
  write_gradient(chosen, thread, loss.chosen * params.scale / divisor.x, params.nll_scale);
  if (is_pair) { write_gradient(rejected, thread, loss.rejected * params.scale / divisor.y, 0.0); }
  if (thread == 0u) {
    store_row(chosen, c, loss.value);
    if (is_pair) { store_row(rejected, r, 0.0); }
  }
}
