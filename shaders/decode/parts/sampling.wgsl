// Parameters, buffers and steps of sampling that do not depend on how a row is divided over threads.
// A kernel defines mass(row, keys, floor_key, counting).
//#include "head/parts/columns.wgsl"

struct Params { rows: u32, first_row: u32, vocabulary: u32, stride: u32, shift: u32, history_stride: u32 }

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> seeds: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> settings: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> next: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> logprobs: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

const LOWEST = -3.0e38;

struct Row {
  // First vec4 of the row.
  start: u32,
  highest: f32,
  inverse_temperature: f32,
}

struct Best { id: u32, logit: f32 }

// Lanes that hold a logit of the vocabulary.
fn used(quad: u32) -> vec4<bool> {
  return columns_of(quad) < vec4u(params.vocabulary);
}

// Integers in the order of the floats.
fn ordered(x: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(x);
  return bits ^ select(vec4u(0x80000000u), vec4u(0xffffffffu), bits >= vec4u(0x80000000u));
}

// The better of the best so far and a vec4 of logits; the lowest id of equals.
fn best_with(best: Best, quad: u32, logit: vec4f) -> Best {
  let x = select(vec4f(LOWEST), logit, used(quad));
  var found = best;
  for (var i = 0u; i < 4u; i++) {
    if (x[i] > found.logit) {
      found = Best(quad * 4u + i, x[i]);
    }
  }
  return found;
}

// The largest key such that the logits that reach it sum to at least `enough`.
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

// The smallest key that top-k, then top-p keep.
fn least_kept(row: Row, top_k: f32, top_p: f32) -> u32 {
  var least = 0u;
  if (top_k > 0.0 && u32(top_k) < params.vocabulary) {
    least = find_least(row, 0u, f32(u32(top_k)), true);
  }
  if (top_p < 1.0) {
    let target_mass = top_p * mass(row, vec3u(), least, false).x;
    least = max(least, min(find_least(row, least, target_mass, false), ordered(vec4f(row.highest)).x));
  }
  return least;
}

// In [0, 1), from the row's seed and the token's position.
fn uniform_number(row: u32) -> f32 {
  return f32(philox(seeds[row], positions[row] + params.shift) >> 8u) / 16777216.0;
}

// Philox 2x32-10.
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

// Writes the token of a row and its log-probability.
fn keep_token(row: u32, token: u32, view: Row, lse: f32) {
  let chosen = logits[view.start + token / 4u][token % 4u];
  let to = row * params.history_stride + params.shift;
  next[row] = token;
  tokens[to] = token;
  logprobs[to] = fma(chosen, view.inverse_temperature, -lse);
}
