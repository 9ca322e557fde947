// attention_backward_queries for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Each of 8 lanes (queries) loads another of 8 neighbouring keys, which go round by shuffles (see attention_subgroup).
// Grid: a workgroup of one subgroup per (8 tokens, HEADS heads that share a key head), a thread per token.

enable subgroups;

//#include "attention/parts/backward_queries.wgsl"
//#include "attention/parts/lanes.wgsl"

override GRID_HEADS: u32 = HEADS;
// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 64u;

fn attend(block: Block, token: u32, lane: u32) {
  let head = block.head * HEADS;
  let start = first_key(token);
  let shared_at = shared_start(head);
  let row = token * params.heads + head;
  let q_at = q_start(token, head * HEAD_QUADS);
  var query: array<vec4f, MAX_QUADS>;
  var grad: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  var delta: array<f32, 2>;
  var log_sum: array<f32, 2>;
  for (var h = 0u; h < HEADS; h++) {
    var deltas = vec4f();
    for (var d = h * HEAD_QUADS; d < (h + 1u) * HEAD_QUADS; d++) {
      query[d] = q[q_at + d] * (params.scale * LOG2_E);
      grad[d] = out_grad[row * HEAD_QUADS + d];
      deltas += grad[d] * out[row * HEAD_QUADS + d];
    }
    delta[h] = dot(deltas, vec4f(1.0));
    log_sum[h] = statistics[(row + h) * 2u] * LOG2_E;
  }
  for (var key = first_key(block.first); key <= block.last; key += LANES) {
    let own_key = min(key + lane, block.last);
    let k_at = k_start(own_key, shared_at);
    let v_at = v_start(own_key, shared_at);
    // Spelt out: Dawn on lavapipe does not clear an array declared in a loop without a value.
    var score = array(vec4f(), vec4f(), vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let keys = of_lanes(k[k_at + d]);
      for (var h = 0u; h < HEADS; h++) {
        let part = query[h * HEAD_QUADS + d];
        score[h * 2u] += low_dots(part, keys);
        score[h * 2u + 1u] += high_dots(part, keys);
      }
    }
    var weight_grad = array(vec4f(), vec4f(), vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let values = of_lanes(v[v_at + d]);
      for (var h = 0u; h < HEADS; h++) {
        let part = grad[h * HEAD_QUADS + d];
        weight_grad[h * 2u] += low_dots(part, values);
        weight_grad[h * 2u + 1u] += high_dots(part, values);
      }
    }
    // One comparison for start <= key <= token: what is below the start wraps to a large number.
    let low_seen = vec4u(key - start) + LOW <= vec4u(token - start);
    let high_seen = vec4u(key - start) + HIGH <= vec4u(token - start);
    for (var h = 0u; h < HEADS; h++) {
      let low = exp2(score[h * 2u] - log_sum[h]) * (weight_grad[h * 2u] - delta[h]);
      let high = exp2(score[h * 2u + 1u] - log_sum[h]) * (weight_grad[h * 2u + 1u] - delta[h]);
      score[h * 2u] = select(vec4f(), low, low_seen);
      score[h * 2u + 1u] = select(vec4f(), high, high_seen);
    }
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let keys = of_lanes(k[k_at + d]);
      for (var h = 0u; h < HEADS; h++) {
        let low = score[h * 2u];
        let high = score[h * 2u + 1u];
        sum[h * HEAD_QUADS + d] += weighted(low, high, keys);
      }
    }
  }
  if (block.first + lane > block.last) { return; }
  for (var h = 0u; h < HEADS; h++) {
    statistics[(row + h) * 2u + 1u] = delta[h];
  }
  let to = grad_start(token, head);
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    q_grad[to + d] = sum[d] * params.scale;
  }
}
