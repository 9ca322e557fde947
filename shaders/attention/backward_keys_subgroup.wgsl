// attention_backward_keys for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Each of 8 lanes (keys) loads another of 8 neighbouring queries, which go round by shuffles (see attention_subgroup).
// Grid: a workgroup of one subgroup per (8 tokens, key head), a thread per token.

enable subgroups;

//#include "attention/parts/backward_keys.wgsl"
//#include "attention/parts/lanes.wgsl"

const GRID_HEADS = 1u;
// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 32u;

// A number of each of lanes 0 to 3, and of lanes 4 to 7.
fn first_four(x: f32) -> vec4f {
  return vec4f(subgroupShuffle(x, 0u), subgroupShuffle(x, 1u), subgroupShuffle(x, 2u), subgroupShuffle(x, 3u));
}

fn last_four(x: f32) -> vec4f {
  return vec4f(subgroupShuffle(x, 4u), subgroupShuffle(x, 5u), subgroupShuffle(x, 6u), subgroupShuffle(x, 7u));
}

fn attend(block: Block, token: u32, lane: u32) {
  let head = block.head;
  let later = queries_end(token) - token;
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
  for (var t = block.first; t < last_end; t += LANES) {
    let own_token = min(t + lane, last_end - 1u);
    // One comparison for token <= t < end: what is before the token wraps to a large number.
    let low_seen = vec4u(t - token) + LOW < vec4u(later);
    let high_seen = vec4u(t - token) + HIGH < vec4u(later);
    for (var h = head * group_heads; h < (head + 1u) * group_heads; h++) {
      let q_at = q_start(own_token, h * HEAD_QUADS);
      let row = own_token * params.heads + h;
      let kept = statistics[row];
      let log_sum = kept.x * LOG2_E;
      var low = -first_four(log_sum);
      var high = -last_four(log_sum);
      let delta = kept.y;
      var low_grad = -first_four(delta);
      var high_grad = -last_four(delta);
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let queries = of_lanes(q[q_at + d]);
        low += low_dots(key[d], queries);
        high += high_dots(key[d], queries);
      }
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let grads = of_lanes(out_grad[row * HEAD_QUADS + d]);
        low_grad += low_dots(value[d], grads);
        high_grad += high_dots(value[d], grads);
      }
      low = select(vec4f(), exp2(low), low_seen);
      high = select(vec4f(), exp2(high), high_seen);
      low_grad *= low;
      high_grad *= high;
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let queries = of_lanes(q[q_at + d]);
        key_sum[d] += weighted(low_grad, high_grad, queries);
      }
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let grads = of_lanes(out_grad[row * HEAD_QUADS + d]);
        value_sum[d] += weighted(low, high, grads);
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
