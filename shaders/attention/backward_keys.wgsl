// Gradients of attention in k and v, over the later tokens t of the sequence and the heads h of the group.
//   v_grad[s] = sum_t,h p_ts out_grad[t, h],  k_grad[s] = scale sum_t,h p_ts (out_grad[t, h] v[s] - delta[t, h]) q[t, h]
//   p_ts = exp(scale q k - statistics[t, h, 0]), delta = statistics[t, h, 1] (attention_backward_queries writes it)
// Grid: a workgroup per (block of tokens, key head), a thread per token s. No atomics.

//#include "attention/parts/backward_keys.wgsl"
//#include "attention/parts/unrolled.wgsl"

fn attend(block: Block, token: u32, lane: u32) {
  let head = block.head;
  let end = queries_end(token);
  let group_heads = params.heads / params.key_heads;
  let k_at = k_start(token, head * HEAD_QUADS);
  let v_at = v_start(token, head * HEAD_QUADS);
  var key: array<vec4f, MAX_QUADS>;
  var value: array<vec4f, MAX_QUADS>;
  var key_sum: array<vec4f, MAX_QUADS>;
  var value_sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    key[d] = k[k_at + d] * (params.scale * LOG2_E);
    value[d] = v[v_at + d];
  }
  let last_end = queries_end(block.last);
  for (var t = block.first; t < last_end; t++) {
    let visible = t >= token && t < end;
    let q_at = q_start(t, head * group_heads * HEAD_QUADS);
    let row = t * params.heads + head * group_heads;
    for (var h = 0u; h < group_heads; h++) {
      var scores = vec4f();
      var weight_grads = vec4f();
      for (var d = 0u; d < HEAD_QUADS; d++) {
        scores += key[d] * q[q_at + h * HEAD_QUADS + d];
        weight_grads += value[d] * out_grad[(row + h) * HEAD_QUADS + d];
      }
      let kept = statistics[row + h];
      let weight = select(0.0, exp2(dot(scores, vec4f(1.0)) - kept.x * LOG2_E), visible);
      let score_grad = weight * (dot(weight_grads, vec4f(1.0)) - kept.y);
      for (var d = 0u; d < HEAD_QUADS; d++) {
        key_sum[d] += score_grad * q[q_at + h * HEAD_QUADS + d];
        value_sum[d] += weight * out_grad[(row + h) * HEAD_QUADS + d];
      }
    }
  }
  if (block.first + lane > block.last) { return; }
  let dk_at = dk_start(token, head);
  let dv_at = dv_start(token, head);
  for (var d = 0u; d < HEAD_QUADS; d++) {
    key_value_grad[dk_at + d] = key_sum[d] * params.scale;
    key_value_grad[dv_at + d] = value_sum[d];
  }
}
