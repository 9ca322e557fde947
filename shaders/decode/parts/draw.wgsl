// Parameters and buffers of a draw, its random number and its results.
//#include "decode/parts/sampling.wgsl"

struct Params { rows: u32, first_row: u32, vocabulary: u32, stride: u32, shift: u32, history_stride: u32 }

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> seeds: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> settings: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> next: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> logprobs: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

struct Row {
  // First vec4 of the row.
  start: u32,
  highest: f32,
  inverse_temperature: f32,
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
