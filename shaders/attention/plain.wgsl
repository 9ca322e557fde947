// Causal grouped-query attention over packed sequences, by online softmax; no score matrix. A token takes its keys one after
// another, each as decode/attention_decode.wgsl does: where a sequence lies, or whether its keys are cached, changes no bit.
//   out[t, h] = sum_s softmax_s(scale q[t, h] k[s, g]) v[s, g],  s in [sequence_start[t], t],  g = h key_heads / heads
// statistics[t, h, 0] = log sum_s exp(scale q k). q, k, v: heads of D = 4 HEAD_QUADS at a stride and an offset per token.
// Grid: a workgroup per (block of tokens, head), a thread per token. Milakov & Gimelshein 2018, Dao et al. 2022.
//#include "parts/groups.wgsl"

struct Params {
  tokens: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  k_stride: u32,
  k_offset: u32,
  v_stride: u32,
  v_offset: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> statistics: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 8u;
override HEAD_QUADS: u32 = 2u;

override UNROLL: u32 = 1u;

// The widest head is 128. Unrolled loops keep their arrays in registers, and what they do not touch is dropped; a
// software driver needs minutes to compile those of wide heads, so there the bound is hidden from it.
const MAX_QUADS = 32u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOWEST = -1e30;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  // One head of a block of neighbouring tokens: every thread walks the same keys, so that their loads are shared.
  let flat = group_index(group);
  let block = flat / params.heads;
  let head = flat - block * params.heads;
  if (block * WORKGROUP >= params.tokens) {
    return;
  }
  let first = block * WORKGROUP;
  let last = min(first + WORKGROUP, params.tokens) - 1u;
  let token = min(first + lane, last);
  let start = sequence_start[token];
  let shared_at = head * params.key_heads / params.heads * HEAD_QUADS;
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  let quads = select(min(HEAD_QUADS, params.q_stride), HEAD_QUADS, UNROLL != 0u);
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < quads; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var highest = LOWEST;
  var total = 0.0;
  for (var key = sequence_start[first]; key <= last; key++) {
    let k_at = (key * params.k_stride + params.k_offset) / 4u + shared_at;
    let v_at = (key * params.v_stride + params.v_offset) / 4u + shared_at;
    var score = 0.0;
    for (var d = 0u; d < quads; d++) {
      score += dot(query[d], k[k_at + d]);
    }
    let visible = key >= start && key <= token;
    // Of exp2(highest - higher) and exp2(score - higher), one is 1.
    let falls = exp2(-abs(score - highest));
    let rises = score > highest;
    let keep = select(1.0, falls, visible && rises);
    let weight = select(0.0, select(falls, 1.0, rises), visible);
    highest = select(highest, max(highest, score), visible);
    total = total * keep + weight;
    for (var d = 0u; d < quads; d++) {
      sum[d] = sum[d] * keep + weight * v[v_at + d];
    }
  }
  if (first + lane > last) {
    return;
  }
  let row = token * params.heads + head;
  for (var d = 0u; d < quads; d++) {
    result[row * HEAD_QUADS + d] = sum[d] / total;
  }
  statistics[row * 2u] = highest / LOG2_E + log(total);
}
