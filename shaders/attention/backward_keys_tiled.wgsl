// attention_backward_keys for GPUs and for wide heads: the same bindings, params and results.
//
// 16 keys of one key head and their values stay in workgroup memory; queries and gradients pass through it 8 at a time.
// Thread (row, lane) has key `row` and query `lane` of a tile, then vec4s lane, lane + 8, .. of the row's gradients.
// Grid: a workgroup per (16 tokens, key head).
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
  dk_stride: u32,
  dk_offset: u32,
  dv_stride: u32,
  dv_offset: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(4) var<storage, read> sequence_end: array<u32>;
@group(0) @binding(5) var<storage, read> statistics: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> key_value_grad: array<vec4f>;
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

var<workgroup> keys: array<vec4f, ROWS * PITCH>;
var<workgroup> values: array<vec4f, ROWS * PITCH>;
var<workgroup> queries: array<vec4f, LANES * PITCH>;
var<workgroup> grads: array<vec4f, LANES * PITCH>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> scores: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  let flat = group_index(group);
  let block = flat / params.key_heads;
  let head = flat - block * params.key_heads;
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
  let later = sequence_end[token] - token;
  let queries_end = sequence_end[last];
  let group_heads = params.heads / params.key_heads;
  let k_at = (token * params.k_stride + params.k_offset) / 4u + head * HEAD_QUADS;
  let v_at = (token * params.v_stride + params.v_offset) / 4u + head * HEAD_QUADS;
  for (var d = lane; d < HEAD_QUADS; d += LANES) {
    keys[row * PITCH + d] = k[k_at + d] * (params.scale * LOG2_E);
    values[row * PITCH + d] = v[v_at + d];
  }
  var key_sum: array<vec4f, MAX_OWN>;
  var value_sum: array<vec4f, MAX_OWN>;
  for (var h = head * group_heads; h < (head + 1u) * group_heads; h++) {
    for (var t = first; t < queries_end; t += LANES) {
      for (var i = thread; i < LANES * HEAD_QUADS; i += THREADS) {
        let tile_row = i / HEAD_QUADS;
        let d = i - tile_row * HEAD_QUADS;
        let from_token = min(t + tile_row, queries_end - 1u);
        queries[tile_row * PITCH + d] = q[(from_token * params.q_stride + params.q_offset) / 4u + h * HEAD_QUADS + d];
        grads[tile_row * PITCH + d] = out_grad[(from_token * params.heads + h) * HEAD_QUADS + d];
      }
      workgroupBarrier();
      var products = vec4f();
      var weight_grads = vec4f();
      for (var d = 0u; d < quads; d++) {
        products += keys[row * PITCH + d] * queries[lane * PITCH + d];
        weight_grads += values[row * PITCH + d] * grads[lane * PITCH + d];
      }
      let kept = statistics[min(t + lane, queries_end - 1u) * params.heads + h];
      // One comparison for token <= t < end: what is before the token wraps to a large number.
      let seen = t + lane - token < later;
      let weight = select(0.0, exp2(dot(products, vec4f(1.0)) - kept.x * LOG2_E), seen);
      weights[thread] = weight;
      scores[thread] = weight * (dot(weight_grads, vec4f(1.0)) - kept.y);
      workgroupBarrier();
      for (var i = 0u; i < lanes; i++) {
        for (var n = 0u; n < OWN; n++) {
          let d = min(lane + n * LANES, HEAD_QUADS - 1u);
          key_sum[n] += scores[row * LANES + i] * queries[i * PITCH + d];
          value_sum[n] += weights[row * LANES + i] * grads[i * PITCH + d];
        }
      }
      workgroupBarrier();
    }
  }
  if (first + row > last) {
    return;
  }
  let dk_at = (token * params.dk_stride + params.dk_offset) / 4u + head * HEAD_QUADS;
  let dv_at = (token * params.dv_stride + params.dv_offset) / 4u + head * HEAD_QUADS;
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * LANES;
    if (d < HEAD_QUADS) {
      key_value_grad[dk_at + d] = key_sum[n] * params.scale;
      key_value_grad[dv_at + d] = value_sum[n];
    }
  }
}
