// attention_backward_queries for GPUs and for wide heads: the same bindings, params and results.
//
// ROWS queries of one head and their gradients stay in workgroup memory; keys and values pass through it 8 at a time.
// Thread (row, lane) has query `row` and key `lane` of a tile, then vec4s lane, lane + 8, .. of the row's gradient.
// Grid: a workgroup per (ROWS tokens, head).

//#include "attention/parts/backward_queries.wgsl"
//#include "attention/parts/key_tiles.wgsl"

var<workgroup> queries: array<vec4f, ROWS * PITCH>;
var<workgroup> grads: array<vec4f, ROWS * PITCH>;
var<workgroup> scores: array<f32, THREADS>;

fn attend(block: Block, token: u32, row: u32, lane: u32) {
  let head = block.head;
  let thread = row * LANES + lane;
  let quads = hidden(HEAD_QUADS);
  let lanes = hidden(LANES);
  let start = first_key(token);
  let shared_at = shared_start(head);
  let to = token * params.heads + head;
  let q_at = q_start(token, head * HEAD_QUADS);
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
  for (var key = first_key(block.first); key <= block.last; key += LANES) {
    load_keys(thread, key, block.last, shared_at);
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
  if (block.first + row > block.last) { return; }
  if (lane == 0u) {
    statistics[to * 2u + 1u] = delta;
  }
  let grad_at = grad_start(token, head);
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * LANES;
    if (d < HEAD_QUADS) {
      q_grad[grad_at + d] = sum[n] * params.scale;
    }
  }
}
