// attention for GPUs and for wide heads: the same bindings, params and results.
//
// 16 queries of one head stay in workgroup memory; keys and values pass through it 8 at a time. Thread (row, lane)
// scores query `row` with key `lane` of a tile, then owns vec4s lane, lane + 8, .. of the row's running sum.
// Tiles begin at the sequence's own first key, and every fma that a compiler could choose is written out: where a sequence
// lies among others, or whether its keys come from a cache (decode/attention_decode_tiled.wgsl), changes no bit.
// Grid: a workgroup per (16 tokens, head).
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

override HEAD_QUADS: u32 = 16u;
// A row of a tile; one vec4 more than it holds, so that rows start in different banks.
override PITCH: u32 = HEAD_QUADS + 1u;

const ROWS = 16u;
const LANES = 8u;
const THREADS = ROWS * LANES;
// Vec4s of a row that a thread owns; heads of 128 have most.
override OWN: u32 = (HEAD_QUADS + LANES - 1u) / LANES;
const MAX_OWN = 4u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOWEST = -1e30;

var<workgroup> queries: array<vec4f, ROWS * PITCH>;
var<workgroup> keys: array<vec4f, LANES * PITCH>;
var<workgroup> values: array<vec4f, LANES * PITCH>;
var<workgroup> scores: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  let flat = group_index(group);
  let block = flat / params.heads;
  let head = flat - block * params.heads;
  let first = block * ROWS;
  if (first >= params.tokens) {
    return;
  }
  let last = min(first + ROWS, params.tokens) - 1u;
  let row = thread / LANES;
  let lane = thread % LANES;
  let token = min(first + row, last);
  // Bounds that a compiler cannot see through: software drivers take half a minute over these loops unrolled.
  let quads = params.heads * HEAD_QUADS / params.heads;
  let lanes = params.heads * LANES / params.heads;
  let shared_at = head * params.key_heads / params.heads * HEAD_QUADS;
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  for (var d = lane; d < HEAD_QUADS; d += LANES) {
    queries[row * PITCH + d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var sum: array<vec4f, MAX_OWN>;
  var highest = LOWEST;
  var total = 0.0;
  // One round for each sequence that the block has tokens of.
  for (var segment = first; segment <= last;) {
    let start = sequence_start[segment];
    var end = last + 1u;
    if (sequence_start[last] != start) {
      for (end = segment + 1u; sequence_start[end] == start; end++) {}
    }
    // Keys below it are those that the token sees; none in another sequence's round.
    let seen = select(0u, token + 1u, token >= segment && token < end);
    for (var key = start; key < end; key += LANES) {
      for (var i = thread; i < LANES * HEAD_QUADS; i += THREADS) {
        let tile_row = i / HEAD_QUADS;
        let d = i - tile_row * HEAD_QUADS;
        let from_key = min(key + tile_row, end - 1u);
        keys[tile_row * PITCH + d] = k[(from_key * params.k_stride + params.k_offset) / 4u + shared_at + d];
        values[tile_row * PITCH + d] = v[(from_key * params.v_stride + params.v_offset) / 4u + shared_at + d];
      }
      workgroupBarrier();
      var products = vec4f();
      for (var d = 0u; d < quads; d++) {
        products = fma(queries[row * PITCH + d], keys[lane * PITCH + d], products);
      }
      let score = (products.x + products.y) + (products.z + products.w);
      scores[thread] = select(LOWEST, score, key + lane < seen);
      workgroupBarrier();
      if (key < seen) {
        var higher = highest;
        for (var i = 0u; i < lanes; i++) {
          higher = max(higher, scores[row * LANES + i]);
        }
        let keep = exp2(highest - higher);
        highest = higher;
        for (var n = 0u; n < OWN; n++) {
          sum[n] *= keep;
        }
        var weights = 0.0;
        for (var i = 0u; i < min(lanes, seen - key); i++) {
          let weight = exp2(scores[row * LANES + i] - higher);
          weights += weight;
          for (var n = 0u; n < OWN; n++) {
            let d = min(lane + n * LANES, HEAD_QUADS - 1u);
            sum[n] = fma(vec4f(weight), values[i * PITCH + d], sum[n]);
          }
        }
        total = fma(total, keep, weights);
      }
      workgroupBarrier();
    }
    segment = end;
  }
  if (first + row > last) {
    return;
  }
  let to = token * params.heads + head;
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * LANES;
    if (d < HEAD_QUADS) {
      result[to * HEAD_QUADS + d] = sum[n] / total;
    }
  }
  if (lane == 0u) {
    statistics[to * 2u] = highest / LOG2_E + log(total);
  }
}
