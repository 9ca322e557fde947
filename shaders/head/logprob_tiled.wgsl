// logprob for GPUs: the same bindings, params and results, by a workgroup per row.
//
// Each thread runs over every WORKGROUP-th vec4 of the row; a tree joins what they hold. Every fma that a compiler could
// choose is written out, because decode/sample_tiled.wgsl must get the same bits.
// Grid: a workgroup per row.

//#include "head/parts/logprob.wgsl"
//#include "parts/groups.wgsl"
//#include "parts/halves.wgsl"

override WORKGROUP: u32 = 256u;

var<workgroup> states: array<State, WORKGROUP>;

// Where a lane holds no logit, x is LOWEST: its weight is 0, and so is the product.
fn absorb(state: State, logit: vec4f, used: vec4<bool>) -> State {
  let x = select(vec4f(LOWEST), logit * params.inverse_temperature, used);
  let highest = max(max(max(x.x, x.y), max(x.z, x.w)), state.highest);
  let distance = fma(logit, vec4f(params.inverse_temperature), vec4f(-highest));
  let shifted = select(vec4f(LOWEST), distance, used);
  let weights = exp(shifted);
  let own = State(highest, (weights.x + weights.y) + (weights.z + weights.w), dot(weights, shifted));
  return join(state, own);
}

fn join(a: State, b: State) -> State {
  let highest = max(a.highest, b.highest);
  let from_a = a.highest - highest;
  let from_b = b.highest - highest;
  return State(
    highest,
    fma(a.total, exp(from_a), b.total * exp(from_b)),
    exp(from_a) * (a.weighted + a.total * from_a) + exp(from_b) * (b.weighted + b.total * from_b),
  );
}

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  if (index >= params.rows) { return; }
  let start = index * params.stride / 4u;
  var state = State(LOWEST, 0.0, 0.0);
  for (var quad = lane; quad * 4u < params.vocabulary; quad += WORKGROUP) {
    state = absorb(state, logits[start + quad], used(quad));
  }
  states[lane] = state;
  for (var half = WORKGROUP / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      states[lane] = join(states[lane], states[lane + half]);
    }
  }
  if (lane > 0u) { return; }
  finish(states[0], params.first_row + index, start);
}
