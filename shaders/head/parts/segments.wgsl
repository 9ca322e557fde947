// The softmax of a row of logits in segments of the vocabulary: a workgroup per (row, segment) keeps a State, and one per row
// joins them, because a single workgroup per row leaves a GPU idle where rows are few. Every fma that a compiler could choose
// is written out: the kernels of decode/sample_* and head/logprob_* must get the same bits.
// A kernel declares logits and params (vocabulary, stride), and defines used(quad).

//#include "head/parts/state.wgsl"
//#include "parts/groups.wgsl"
//#include "parts/halves.wgsl"

const THREADS = 128u;
const SEGMENT_QUADS = 512u;
// Where no logit is: its weight is 0, and so is the product.
const EMPTY = -1e30;

var<workgroup> states: array<State, THREADS>;

fn row_quads() -> u32 {
  return (params.vocabulary + 3u) / 4u;
}

fn segment_count() -> u32 {
  return (row_quads() + SEGMENT_QUADS - 1u) / SEGMENT_QUADS;
}

// Vec4s [first, end) of a row that starts at `start`; `row` counts from the first of the logits.
struct Segment { row: u32, start: u32, first: u32, end: u32 }

fn segment_at(index: u32) -> Segment {
  let row = index / segment_count();
  let first = (index - row * segment_count()) * SEGMENT_QUADS;
  return Segment(row, row * params.stride / 4u, first, min(first + SEGMENT_QUADS, row_quads()));
}

fn absorb(state: State, logit: vec4f, inverse: f32, is_used: vec4<bool>) -> State {
  let x = select(vec4f(EMPTY), logit * inverse, is_used);
  let highest = max(max(max(x.x, x.y), max(x.z, x.w)), state.highest);
  let shifted = select(vec4f(EMPTY), fma(logit, vec4f(inverse), vec4f(-highest)), is_used);
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

// Every THREADS-th vec4 of a segment.
fn thread_state(segment: Segment, lane: u32, inverse: f32) -> State {
  var state = State(EMPTY, 0.0, 0.0);
  for (var quad = segment.first + lane; quad < segment.end; quad += THREADS) {
    state = absorb(state, logits[segment.start + quad], inverse, used(quad));
  }
  return state;
}

// Joins the threads' states into states[0], by a fixed tree. All threads may read it.
fn join_threads(lane: u32, own: State) {
  states[lane] = own;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      states[lane] = join(states[lane], states[lane + half]);
    }
  }
  workgroupBarrier();
}
