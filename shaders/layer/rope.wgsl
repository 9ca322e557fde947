// Turns pairs (d, d + D/2) of each row by the angle of its token's position, in place; sign -1 turns back.
// positions [T], table [positions, D] = [cos(D/2) | sin(D/2)]; rows of width D inside wider tokens.
// Grid: a thread per (row, two pairs). https://arxiv.org/abs/2104.09864, halves as in Hugging Face's rotate_half.

//#include "parts/quads.wgsl"

struct Params { rows: u32, width: u32, per_token: u32, stride: u32, offset: u32, shift: u32, sign: f32 }

@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<vec2f>;
@group(0) @binding(2) var<storage, read_write> x: array<vec2f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  let half = at.quads;
  let token = at.row / params.per_token;
  let low_at = (token * params.stride + params.offset + (at.row - token * params.per_token) * params.width) / 2u + at.column;
  let angle_at = (positions[token] + params.shift) * half * 2u + at.column;
  let cosine = table[angle_at];
  let sine = table[angle_at + half] * params.sign;
  let low = x[low_at];
  let high = x[low_at + half];
  // Which product is rounded is written out: decode/rope_append.wgsl and decode/attention_step.wgsl must get the same bits.
  x[low_at] = fma(low, cosine, -(high * sine));
  x[low_at + half] = fma(high, cosine, low * sine);
}
