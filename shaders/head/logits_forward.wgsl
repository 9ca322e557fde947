// Log-prob of the target, entropy, log-sum-exp and sum of squared probabilities of softmax(logits / temperature), from
// one piece of the vocabulary at a time: columns [column_offset, column_offset + columns) of every row.
//   state = (highest, sum e, sum e (x - highest), sum e^2), e = exp(x - highest), merged from piece to piece
//   lse = highest + log(sum e), entropy = log(sum e) - sum e (x - highest) / sum e, sum p^2 = sum e^2 / (sum e)^2
// logits [rows, stride] in vec4s; the per-row buffers start at first_row. FIRST begins the state, LAST finishes it.
// Sixteen logits a step keep rescaling rare and sums short. Grid: an invocation per row.

//#include "head/parts/pieces.wgsl"
//#include "parts/rows.wgsl"

override FIRST: bool = true;
override LAST: bool = true;

const LOWEST = -1e30;

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> states: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(4) var<storage, read_write> entropies: array<f32>;
@group(0) @binding(5) var<storage, read_write> log_sum_exps: array<f32>;
@group(0) @binding(6) var<storage, read_write> sums_pi_squared: array<f32>;

// Lanes without a logit are LOWEST: their weight is 0.
fn absorb(state: vec4f, x: array<vec4f, 4>) -> vec4f {
  let most = max(max(x[0], x[1]), max(x[2], x[3]));
  let highest = max(max(max(most.x, most.y), max(most.z, most.w)), state.x);
  let keep = exp(state.x - highest);
  var totals = vec4(0.0);
  var products = vec4(0.0);
  var squares = vec4(0.0);
  for (var i = 0u; i < 4u; i++) {
    let shifted = x[i] - highest;
    let weights = exp(shifted);
    totals += weights;
    products += weights * shifted;
    squares += weights * weights;
  }
  return vec4(
    highest,
    state.y * keep + dot(totals, vec4(1.0)),
    keep * (state.z + state.y * max(state.x - highest, LOWEST)) + dot(products, vec4(1.0)),
    state.w * keep * keep + dot(squares, vec4(1.0)),
  );
}

fn compute_row(index: u32) {
  let row = params.first_row + index;
  let start = index * params.stride / 4u;
  let scale = params.inverse_temperature;
  var state = vec4(LOWEST, 0.0, 0.0, 0.0);
  if (!FIRST) { state = states[row]; }
  let full = params.columns / 16u * 4u;
  for (var quad = 0u; quad < full; quad += 4u) {
    let at = start + quad;
    state = absorb(state, array(logits[at] * scale, logits[at + 1u] * scale, logits[at + 2u] * scale, logits[at + 3u] * scale));
  }
  for (var quad = full; quad * 4u < params.columns; quad++) {
    let x = select(vec4(LOWEST), logits[start + quad] * scale, used(quad));
    state = absorb(state, array(x, vec4(LOWEST), vec4(LOWEST), vec4(LOWEST)));
  }
  // The target's own logit waits in `logprobs` until the state is finished.
  let target_column = targets[row] - params.column_offset;
  var chosen = 0.0;
  if (!FIRST) { chosen = logprobs[row]; }
  if (target_column < params.columns) { chosen = logits[start + target_column / 4u][target_column % 4u] * scale; }
  logprobs[row] = chosen;
  if (!LAST) {
    states[row] = state;
    return;
  }
  let lse = state.x + log(state.y);
  logprobs[row] = chosen - lse;
  entropies[row] = log(state.y) - state.z / state.y;
  log_sum_exps[row] = lse;
  sums_pi_squared[row] = state.w / (state.y * state.y);
}
