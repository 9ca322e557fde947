// Attention of one new query per row over its slot of the cache, positions 0 .. positions[r] + shift. Keys come one after
// another, each as in attention/plain.wgsl and attention/subgroup.wgsl: the bits are the same.
// keys, values [slots, max_length, key_heads D]; q at a stride and an offset per row; result [rows, heads D].
// Grid: a thread per (row, HEADS heads): one that shares a key head, or two that share their loads of it.
//#include "parts/threads.wgsl"

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  max_length: u32,
  shift: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> keys: array<vec4f>;
@group(0) @binding(2) var<storage, read> values: array<vec4f>;
@group(0) @binding(3) var<storage, read> slots: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override HEAD_QUADS: u32 = 2u;
override HEADS: u32 = 1u;

override UNROLL: u32 = 1u;

// The widest head is 128. Unrolled loops keep their arrays in registers, and what they do not touch is dropped; a
// software driver needs minutes to compile those of wide heads, so there the bound is hidden from it.
const MAX_QUADS = 64u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOWEST = -1e30;

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  let index = thread_index(thread);
  let bundles = params.heads / HEADS;
  if (index >= params.rows * bundles) {
    return;
  }
  let row = index / bundles;
  let head = (index - row * bundles) * HEADS;
  let length = min(positions[row] + params.shift + 1u, params.max_length);
  let key_stride = params.key_heads * HEAD_QUADS;
  var at = slots[row] * params.max_length * key_stride + head * params.key_heads / params.heads * HEAD_QUADS;
  let q_at = (row * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var highest = vec2f(LOWEST);
  var total = vec2f();
  for (var s = 0u; s < length; s++) {
    var score = vec2f();
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let key = keys[at + d];
      for (var h = 0u; h < HEADS; h++) {
        score[h] += dot(query[h * HEAD_QUADS + d], key);
      }
    }
    // Of exp2(highest - higher) and exp2(score - higher), one is 1.
    let falls = exp2(-abs(score - highest));
    let rises = score > highest;
    let keep = select(vec2f(1.0), falls, rises);
    let weight = select(falls, vec2f(1.0), rises);
    highest = max(highest, score);
    total = total * keep + weight;
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let value = values[at + d];
      for (var h = 0u; h < HEADS; h++) {
        sum[h * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] * keep[h] + weight[h] * value;
      }
    }
    at += key_stride;
  }
  let to = (row * params.heads + head) * HEAD_QUADS;
  for (var h = 0u; h < HEADS; h++) {
    for (var d = 0u; d < HEAD_QUADS; d++) {
      result[to + h * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] / total[h];
    }
  }
}
