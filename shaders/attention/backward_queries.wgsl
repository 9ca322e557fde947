// Gradient of attention in q, and delta = rowsum(out_grad * out) into statistics[t, h, 1].
//   q_grad[t] = scale sum_s p_ts (out_grad[t] v[s] - delta[t]) k[s],  p_ts = exp(scale q[t] k[s] - statistics[t, h, 0])
// Grid: a workgroup per (block of tokens, head), a thread per token. Dao 2023 (FlashAttention-2), without its atomics.

//#include "attention/parts/backward_queries.wgsl"
//#include "attention/parts/unrolled.wgsl"

fn attend(block: Block, token: u32, lane: u32) {
  let head = block.head;
  let start = first_key(token);
  let shared_at = shared_start(head);
  let row = token * params.heads + head;
  let q_at = q_start(token, head * HEAD_QUADS);
  var query: array<vec4f, MAX_QUADS>;
  var grad: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  var deltas = vec4f();
  for (var d = 0u; d < HEAD_QUADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
    grad[d] = out_grad[row * HEAD_QUADS + d];
    deltas += grad[d] * out[row * HEAD_QUADS + d];
  }
  let delta = dot(deltas, vec4f(1.0));
  let log_sum = statistics[row * 2u] * LOG2_E;
  for (var key = first_key(block.first); key <= block.last; key++) {
    let k_at = k_start(key, shared_at);
    let v_at = v_start(key, shared_at);
    var scores = vec4f();
    var weight_grads = vec4f();
    for (var d = 0u; d < HEAD_QUADS; d++) {
      scores += query[d] * k[k_at + d];
      weight_grads += grad[d] * v[v_at + d];
    }
    let visible = key >= start && key <= token;
    let weight = select(0.0, exp2(dot(scores, vec4f(1.0)) - log_sum), visible);
    let score_grad = weight * (dot(weight_grads, vec4f(1.0)) - delta);
    for (var d = 0u; d < HEAD_QUADS; d++) {
      sum[d] += score_grad * k[k_at + d];
    }
  }
  if (block.first + lane > block.last) { return; }
  statistics[row * 2u + 1u] = delta;
  let to = grad_start(token, head);
  for (var d = 0u; d < HEAD_QUADS; d++) {
    q_grad[to + d] = sum[d] * params.scale;
  }
}
