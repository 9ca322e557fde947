// attention_backward_keys for GPUs and for wide heads: the same bindings, params and results.
//
// ROWS keys of one key head and their values stay in workgroup memory; queries and gradients pass through it 8 at a time.
// Thread (row, lane) has key `row` and query `lane` of a tile, then vec4s lane, lane + 8, .. of the row's gradients.
// Grid: a workgroup per (ROWS tokens, key head).

//#include "attention/parts/backward_keys.wgsl"
//#include "attention/parts/tiled.wgsl"

var<workgroup> keys: array<vec4f, ROWS * PITCH>;
var<workgroup> values: array<vec4f, ROWS * PITCH>;
var<workgroup> queries: array<vec4f, LANES * PITCH>;
var<workgroup> grads: array<vec4f, LANES * PITCH>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> scores: array<f32, THREADS>;

fn attend(block: Block, token: u32, row: u32, lane: u32) {
  let head = block.head;
  let thread = row * LANES + lane;
  let quads = hidden(HEAD_QUADS);
  let lanes = hidden(LANES);
  let later = queries_end(token) - token;
  let last_end = queries_end(block.last);
  let group_heads = params.heads / params.key_heads;
  let k_at = k_start(token, head * HEAD_QUADS);
  let v_at = v_start(token, head * HEAD_QUADS);
  for (var d = lane; d < HEAD_QUADS; d += LANES) {
    keys[row * PITCH + d] = k[k_at + d] * (params.scale * LOG2_E);
    values[row * PITCH + d] = v[v_at + d];
  }
  var key_sum: array<vec4f, MAX_OWN>;
  var value_sum: array<vec4f, MAX_OWN>;
  for (var h = head * group_heads; h < (head + 1u) * group_heads; h++) {
    for (var t = block.first; t < last_end; t += LANES) {
      for (var i = thread; i < LANES * HEAD_QUADS; i += THREADS) {
        let tile_row = i / HEAD_QUADS;
        let d = i - tile_row * HEAD_QUADS;
        let from_token = min(t + tile_row, last_end - 1u);
        queries[tile_row * PITCH + d] = q[q_start(from_token, h * HEAD_QUADS) + d];
        grads[tile_row * PITCH + d] = out_grad[(from_token * params.heads + h) * HEAD_QUADS + d];
      }
      workgroupBarrier();
      var products = vec4f();
      var weight_grads = vec4f();
      for (var d = 0u; d < quads; d++) {
        products += keys[row * PITCH + d] * queries[lane * PITCH + d];
        weight_grads += values[row * PITCH + d] * grads[lane * PITCH + d];
      }
      let kept = statistics[min(t + lane, last_end - 1u) * params.heads + h];
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
  if (block.first + row > block.last) { return; }
  let dk_at = dk_start(token, head);
  let dv_at = dv_start(token, head);
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * LANES;
    if (d < HEAD_QUADS) {
      key_value_grad[dk_at + d] = key_sum[n] * params.scale;
      key_value_grad[dv_at + d] = value_sum[n];
    }
  }
}
