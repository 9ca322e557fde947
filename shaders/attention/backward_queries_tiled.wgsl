// attention_backward_queries for GPUs and for wide heads: the same bindings, params and results.
//
// 16 queries of one head and their gradients stay in workgroup memory; keys and values pass through it 8 at a time.
// Thread (row, lane) has query `row` and key `lane` of a tile, then vec4s lane, lane + 8, .. of the row's gradient.
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
  grad_stride: u32,
  grad_offset: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> out: array<vec4f>;
@group(0) @binding(4) var<storage, read> out_grad: array<vec4f>;
@group(0) @binding(5) var<storage, read> sequence_start: array<u32>;
@group(0) @binding(6) var<storage, read_write> statistics: array<f32>;
@group(0) @binding(7) var<storage, read_write> q_grad: array<vec4f>;
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

var<workgroup> queries: array<vec4f, ROWS * PITCH>;
var<workgroup> grads: array<vec4f, ROWS * PITCH>;
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
  let start = sequence_start[token];
  let shared_at = head * params.key_heads / params.heads * HEAD_QUADS;
  let to = token * params.heads + head;
  let q_at = (token * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  var deltas = vec4f();
  for (var d = lane; d < HEAD_QUADS; d += LANES) {
    let grad = out_grad[to * HEAD_QUADS + d];
    queries[row * PITCH + d] = q[q_at + d] * (params.scale * LOG2_E);
    grads[row * PITCH + d] = grad;
    deltas += grad * out[to * HEAD_QUADS + d];
  }
  scores[thread] = dot(deltas, vec4f(1.0));
  workgroupBarrier();
  var delta = 0.0;
  for (var i = 0u; i < lanes; i++) {
    delta += scores[row * LANES + i];
  }
  let log_sum = statistics[to * 2u] * LOG2_E;
  var sum: array<vec4f, MAX_OWN>;
  for (var key = sequence_start[first]; key <= last; key += LANES) {
    for (var i = thread; i < LANES * HEAD_QUADS; i += THREADS) {
      let tile_row = i / HEAD_QUADS;
      let d = i - tile_row * HEAD_QUADS;
      let from_key = min(key + tile_row, last);
      keys[tile_row * PITCH + d] = k[(from_key * params.k_stride + params.k_offset) / 4u + shared_at + d];
      values[tile_row * PITCH + d] = v[(from_key * params.v_stride + params.v_offset) / 4u + shared_at + d];
    }
    workgroupBarrier();
    var products = vec4f();
    var weight_grads = vec4f();
    for (var d = 0u; d < quads; d++) {
      products += queries[row * PITCH + d] * keys[lane * PITCH + d];
      weight_grads += grads[row * PITCH + d] * values[lane * PITCH + d];
    }
    // One comparison for start <= key <= token: what is below the start wraps to a large number.
    let seen = key + lane - start <= token - start;
    let weight = select(0.0, exp2(dot(products, vec4f(1.0)) - log_sum), seen);
    scores[thread] = weight * (dot(weight_grads, vec4f(1.0)) - delta);
    workgroupBarrier();
    for (var i = 0u; i < lanes; i++) {
      let score_grad = scores[row * LANES + i];
      for (var n = 0u; n < OWN; n++) {
        let d = min(lane + n * LANES, HEAD_QUADS - 1u);
        sum[n] += score_grad * keys[i * PITCH + d];
      }
    }
    workgroupBarrier();
  }
  if (first + row > last) {
    return;
  }
  if (lane == 0u) {
    statistics[to * 2u + 1u] = delta;
  }
  let grad_at = (token * params.grad_stride + params.grad_offset) / 4u + head * HEAD_QUADS;
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * LANES;
    if (d < HEAD_QUADS) {
      q_grad[grad_at + d] = sum[n] * params.scale;
    }
  }
}
