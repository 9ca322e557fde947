// Preference losses over pairs of packed rows (2i chosen, 2i + 1 rejected), or over labelled rows.
// c, r = scores: sum of log-probs minus the reference's, or of log-probs (REFERENCE), divided by the tokens (MEAN).
// The function pair_loss of a loss (src/engine/algorithm/preference/form.ts) is joined to this frame, with the Settings that it reads. To the
// gradient comes, at the tokens of nll_mask of chosen rows, nll_scale times the negative log-likelihood's.
// rows: [N, 4], a row's sums of log-probs, of log-ratios and of negative log-likelihoods, and the loss of its unit.
// Grid: one workgroup per unit, folded over y. Each sum is a fixed tree.
// See TRL's DPOTrainer, KTOTrainer, ORPOTrainer and CPOTrainer.

//#include "parts/groups.wgsl"
//#include "parts/tree.wgsl"
//#include "preference/parts/logistic.wgsl"

const THREADS = 64u;
const COLUMNS = 4u;

// log-probs, log-ratios, negative log-likelihoods, tokens.
alias Sum = vec4f;

// False where rows are labelled one by one.
override PAIRS: bool = true;
override REFERENCE: bool = true;
override MEAN: bool = false;

struct Params {
  units: u32,
  scale: f32,
  nll_scale: f32,
  padding: f32,
  settings: Settings,
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

// What a loss sees: the scores, d = chosen - rejected, and whether a labelled row is desirable.
struct Scores { chosen: f32, rejected: f32, d: f32, desirable: bool }

// A loss and its slopes in the two scores.
struct PairLoss { value: f32, chosen: f32, rejected: f32 }

fn of_difference(value: f32, slope: f32) -> PairLoss {
  return PairLoss(value, slope, -slope);
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
  let inside = unit < params.units;
  let chosen = select(0u, select(unit, 2u * unit, PAIRS), inside);
  let rejected = select(chosen, chosen + 1u, PAIRS);
  let c = sum_row(chosen, thread, params.nll_scale > 0.0);
  let r = sum_row(rejected, thread, false);
  if (!inside) { return; }
  let scores = vec2f(score_of(c), select(0.0, score_of(r), PAIRS));
  let loss = pair_loss(Scores(scores.x, scores.y, scores.x - scores.y, labels[unit] == 1u));
  let divisor = select(vec2f(1.0), vec2f(c.w, r.w), MEAN);
  write_gradient(chosen, thread, loss.chosen * params.scale / divisor.x, params.nll_scale);
  if (PAIRS) { write_gradient(rejected, thread, loss.rejected * params.scale / divisor.y, 0.0); }
  if (thread == 0u) {
    store_row(chosen, c, loss.value);
    if (PAIRS) { store_row(rejected, r, 0.0); }
  }
}
