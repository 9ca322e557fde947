// sample for GPUs: the same bindings, params and results, by a workgroup per row.
//
// Sums run over every 256th vec4 and are joined by a tree; only the draw walks ids in order, a stretch of them per
// thread, in the one stretch where the cumulative sum passes the target. The log-probability comes as in
// head/logprob_tiled.wgsl, so that both have the same bits.
// Grid: a workgroup per row.
//#include "parts/groups.wgsl"

struct Params {
  rows: u32,
  first_row: u32,
  vocabulary: u32,
  stride: u32,
  shift: u32,
  history_stride: u32,
}

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> seeds: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> settings: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> next: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> logprobs: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

const THREADS = 256u;
const LOWEST = -3.0e38;

struct Row {
  // First vec4 of the row.
  start: u32,
  highest: f32,
  inverse_temperature: f32,
}

struct Best {
  id: u32,
  logit: f32,
}

// The thread in its workgroup.
var<private> lane: u32;
var<workgroup> sums: array<vec3f, THREADS>;
var<workgroup> bests: array<Best, THREADS>;
// The highest of some logits / temperature, and the sum of exp(x - highest).
var<workgroup> states: array<vec2f, THREADS>;
var<workgroup> drawn: u32;

fn used(quad: u32) -> vec4<bool> {
  return vec4u(quad * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(params.vocabulary);
}

// Integers in the order of the floats.
fn ordered(x: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(x);
  return bits ^ select(vec4u(0x80000000u), vec4u(0xffffffffu), bits >= vec4u(0x80000000u));
}

fn better(a: Best, b: Best) -> Best {
  if (b.logit > a.logit || (b.logit == a.logit && b.id < a.id)) {
    return b;
  }
  return a;
}

fn find_best(start: u32) -> Best {
  var best = Best(0u, LOWEST);
  for (var quad = lane; quad * 4u < params.vocabulary; quad += THREADS) {
    let x = select(vec4f(LOWEST), logits[start + quad], used(quad));
    for (var i = 0u; i < 4u; i++) {
      if (x[i] > best.logit) {
        best = Best(quad * 4u + i, x[i]);
      }
    }
  }
  bests[lane] = best;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
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
  sums[lane] = value;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      sums[lane] += sums[lane + half];
    }
  }
  workgroupBarrier();
  let sum = sums[0];
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
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
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

// The largest key such that what reaches it sums to at least `enough`.
fn find_least(row: Row, floor_key: u32, enough: f32, counting: bool) -> u32 {
  var key = 0u;
  for (var place = 32u; place > 0u;) {
    place -= 2u;
    let candidates = vec3u(key) + (vec3u(1u, 2u, 3u) << vec3u(place));
    let reached = mass(row, candidates, floor_key, counting) >= vec3f(enough);
    key = select(select(select(key, candidates.x, reached.x), candidates.y, reached.y), candidates.z, reached.z);
  }
  return key;
}

// Weights of a vec4 of logits, 0 for those not kept.
fn kept(row: Row, quad: u32, least: u32) -> vec4f {
  let x = logits[row.start + quad];
  let is_kept = used(quad) & (ordered(x) >= vec4u(least));
  return select(vec4f(), exp((x - row.highest) * row.inverse_temperature), is_kept);
}

// The first id at which the cumulative sum passes the target; the best where rounding hides it.
fn draw(row: Row, least: u32, uniform_number: f32, best: u32) -> u32 {
  let quads = (params.vocabulary + 3u) / 4u;
  let stretch = (quads + THREADS - 1u) / THREADS;
  let end = min((lane + 1u) * stretch, quads);
  var own = 0.0;
  for (var quad = lane * stretch; quad < end; quad++) {
    own += dot(kept(row, quad, least), vec4f(1.0));
  }
  sums[lane] = vec3f(own);
  drawn = best;
  workgroupBarrier();
  var all = 0.0;
  var below = 0.0;
  for (var i = 0u; i < THREADS; i++) {
    below = select(below, all, i == lane);
    all += sums[i].x;
  }
  let target_mass = uniform_number * all;
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

fn philox(seed: u32, position: u32) -> u32 {
  var key = seed;
  var low = position;
  var high = 0u;
  for (var round = 0u; round < 10u; round++) {
    let product = multiply_wide(low, 0xd256d193u);
    low = product.y ^ key ^ high;
    high = product.x;
    key += 0x9e3779b9u;
  }
  return low;
}

// Low and high halves of a 64-bit product.
fn multiply_wide(a: u32, b: u32) -> vec2u {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
  return vec2u(a * b, (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u));
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  lane = thread;
  let index = group_index(group);
  if (index >= params.rows) {
    return;
  }
  let row = params.first_row + index;
  let setting = settings[row];
  let greedy = setting.x == 0.0;
  let start = index * params.stride / 4u;
  let best = find_best(start);
  let view = Row(start, best.logit, setting.w);
  let lse = log_sum_exp(start, view.inverse_temperature);
  var token = best.id;
  if (!greedy) {
    var least = 0u;
    if (setting.z > 0.0 && u32(setting.z) < params.vocabulary) {
      least = find_least(view, 0u, f32(u32(setting.z)), true);
    }
    if (setting.y < 1.0) {
      let target_mass = setting.y * mass(view, vec3u(), least, false).x;
      least = max(least, min(find_least(view, least, target_mass, false), ordered(vec4f(best.logit)).x));
    }
    token = draw(view, least, f32(philox(seeds[row], positions[row] + params.shift) >> 8u) / 16777216.0, best.id);
  }
  if (lane == 0u) {
    let chosen = logits[start + token / 4u][token % 4u];
    let to = row * params.history_stride + params.shift;
    next[row] = token;
    tokens[to] = token;
    logprobs[to] = fma(chosen, view.inverse_temperature, -lse);
  }
}
