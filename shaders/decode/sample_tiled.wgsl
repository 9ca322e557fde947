// sample for GPUs: the same bindings, params and results, by a workgroup per row.
//
// Sums run over every 256th vec4 and are joined by a tree; only the draw walks ids in order, a stretch of them per
// thread, in the one stretch where the cumulative sum passes the target. The log-probability comes as in
// head/logprob_tiled.wgsl, so that both have the same bits.
// Grid: a workgroup per row.

//#include "parts/tree.wgsl"
//#include "decode/parts/sampling.wgsl"
//#include "parts/groups.wgsl"
//#include "parts/halves.wgsl"

alias Sum = vec3f;

const THREADS = 256u;
// The thread in its workgroup.
var<private> lane: u32;
var<workgroup> bests: array<Best, THREADS>;
// The highest of some logits / temperature, and the sum of exp(x - highest).
var<workgroup> states: array<vec2f, THREADS>;
var<workgroup> drawn: u32;

fn better(a: Best, b: Best) -> Best {
  if (b.logit > a.logit || (b.logit == a.logit && b.id < a.id)) {
    return b;
  }
  return a;
}

fn find_best(start: u32) -> Best {
  var best = Best(0u, LOWEST);
  for (var quad = lane; quad * 4u < params.vocabulary; quad += THREADS) {
    best = best_with(best, quad, logits[start + quad]);
  }
  bests[lane] = best;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      bests[lane] = better(bests[lane], bests[lane + half]);
    }
  }
  workgroupBarrier();
  return bests[0];
}

// Sum over the threads, the same in all of them.
fn together(value: vec3f) -> vec3f {
  sum_threads(lane, value);
  workgroupBarrier();
  let sum = shared_sums[0];
  workgroupBarrier();
  return sum;
}

// Sums over logits whose key reaches each of three keys and the floor: of exp((x - highest) / temperature), or of 1.
fn mass(row: Row, keys: vec3u, floor_key: u32, counting: bool) -> vec3f {
  var first = vec4f();
  var second = vec4f();
  var third = vec4f();
  for (var quad = lane; quad * 4u < params.vocabulary; quad += THREADS) {
    let x = logits[row.start + quad];
    let key = ordered(x);
    let counted = used(quad) & (key >= vec4u(floor_key));
    let weights = select(exp((x - row.highest) * row.inverse_temperature), vec4f(1.0), counting);
    first += select(vec4f(), weights, counted & (key >= vec4u(keys.x)));
    second += select(vec4f(), weights, counted & (key >= vec4u(keys.y)));
    third += select(vec4f(), weights, counted & (key >= vec4u(keys.z)));
  }
  return together(vec3f(dot(first, vec4f(1.0)), dot(second, vec4f(1.0)), dot(third, vec4f(1.0))));
}

// log sum exp(logits / temperature), by the steps of head/logprob_tiled.wgsl; the same in all threads.
fn log_sum_exp(start: u32, inverse_temperature: f32) -> f32 {
  let none = vec4f(-1e30);
  let inverse = vec4f(inverse_temperature);
  var state = vec2f(none.x, 0.0);
  for (var quad = lane; quad * 4u < params.vocabulary; quad += THREADS) {
    let logit = logits[start + quad];
    let x = select(none, logit * inverse, used(quad));
    let highest = max(max(max(x.x, x.y), max(x.z, x.w)), state.x);
    let weights = exp(select(none, fma(logit, inverse, vec4f(-highest)), used(quad)));
    state = join(state, vec2f(highest, (weights.x + weights.y) + (weights.z + weights.w)));
  }
  states[lane] = state;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      states[lane] = join(states[lane], states[lane + half]);
    }
  }
  workgroupBarrier();
  return states[0].x + log(states[0].y);
}

fn join(a: vec2f, b: vec2f) -> vec2f {
  let highest = max(a.x, b.x);
  return vec2f(highest, fma(a.y, exp(a.x - highest), b.y * exp(b.x - highest)));
}

// Weights of a vec4 of logits, 0 for those not kept.
fn kept(row: Row, quad: u32, least: u32) -> vec4f {
  let x = logits[row.start + quad];
  let is_kept = used(quad) & (ordered(x) >= vec4u(least));
  return select(vec4f(), exp((x - row.highest) * row.inverse_temperature), is_kept);
}

// The first id at which the cumulative sum passes the target; the best where rounding hides it.
fn draw(row: Row, least: u32, share: f32, best: u32) -> u32 {
  let quads = (params.vocabulary + 3u) / 4u;
  let stretch = (quads + THREADS - 1u) / THREADS;
  let end = min((lane + 1u) * stretch, quads);
  var own = 0.0;
  for (var quad = lane * stretch; quad < end; quad++) {
    own += dot(kept(row, quad, least), vec4f(1.0));
  }
  shared_sums[lane] = vec3f(own);
  drawn = best;
  workgroupBarrier();
  var all = 0.0;
  var below = 0.0;
  for (var i = 0u; i < THREADS; i++) {
    below = select(below, all, i == lane);
    all += shared_sums[i].x;
  }
  let target_mass = share * all;
  if (own > 0.0 && below <= target_mass && target_mass < below + own) {
    var id = best;
    for (var quad = lane * stretch; quad < end; quad++) {
      let weights = kept(row, quad, least);
      for (var i = 0u; i < 4u; i++) {
        if (weights[i] > 0.0 && below <= target_mass) {
          id = quad * 4u + i;
        }
        below += weights[i];
      }
    }
    drawn = id;
  }
  workgroupBarrier();
  return drawn;
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  lane = thread;
  let index = group_index(group);
  if (index >= params.rows) { return; }
  let row = params.first_row + index;
  let setting = settings[row];
  let greedy = setting.x == 0.0;
  let start = index * params.stride / 4u;
  let best = find_best(start);
  let view = Row(start, best.logit, setting.w);
  let lse = log_sum_exp(start, view.inverse_temperature);
  var token = best.id;
  if (!greedy) {
    token = draw(view, least_kept(view, setting.z, setting.y), uniform_number(row), best.id);
  }
  if (lane == 0u) {
    keep_token(row, token, view, lse);
  }
}
