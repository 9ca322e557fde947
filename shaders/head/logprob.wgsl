// Per row of logits / temperature: log-probability of the target, entropy, log-sum-exp, in one pass.
//   logprob = x_y - lse,  entropy = lse - sum_i p_i x_i,  lse = log sum_i exp(x_i)
// logits [rows, stride], V used; the per-row buffers start at first_row. Sixteen logits a step keep rescaling rare and
// sums short. Grid: a thread per row.

//#include "head/parts/logprob.wgsl"
//#include "parts/rows.wgsl"

// Where a lane holds no logit it is LOWEST: its weight is 0, and so is the product.
fn absorb(state: ptr<function, State>, x: array<vec4f, 4>) {
  let most = max(max(x[0], x[1]), max(x[2], x[3]));
  let old = (*state).highest;
  let highest = max(max(max(most.x, most.y), max(most.z, most.w)), old);
  let keep = exp(old - highest);
  (*state).weighted = keep * ((*state).weighted + (*state).total * max(old - highest, LOWEST));
  var totals = vec4f();
  var products = vec4f();
  for (var i = 0u; i < 4u; i++) {
    let shifted = x[i] - highest;
    let weights = exp(shifted);
    totals += weights;
    products += weights * shifted;
  }
  (*state).total = (*state).total * keep + dot(totals, vec4f(1.0));
  (*state).weighted += dot(products, vec4f(1.0));
  (*state).highest = highest;
}

fn compute_row(index: u32) {
  let start = index * params.stride / 4u;
  let full = params.vocabulary / 16u * 4u;
  var state = State(LOWEST, 0.0, 0.0);
  for (var quad = 0u; quad < full; quad += 4u) {
    absorb(&state, array(
      logits[start + quad] * params.inverse_temperature,
      logits[start + quad + 1u] * params.inverse_temperature,
      logits[start + quad + 2u] * params.inverse_temperature,
      logits[start + quad + 3u] * params.inverse_temperature,
    ));
  }
  for (var quad = full; quad * 4u < params.vocabulary; quad++) {
    let x = select(vec4f(LOWEST), logits[start + quad] * params.inverse_temperature, used(quad));
    absorb(&state, array(x, vec4f(LOWEST), vec4f(LOWEST), vec4f(LOWEST)));
  }
  finish(state, params.first_row + index, start);
}
