// Causal grouped-query attention over packed sequences, by online softmax; no score matrix. A token takes its keys one after
// another, each as decode/attention_decode.wgsl does: where a sequence lies, or whether its keys are cached, changes no bit.
//   out[t, h] = sum_s softmax_s(scale q[t, h] k[s, g]) v[s, g],  g = h key_heads / heads
//   s in [max(sequence_start[t], t + 1 - window), t]
// Query 0 is of token t = `first`; k, v and sequence_start have all tokens, q and the results those from there on.
// statistics[t, h, 0] = log sum_s exp(scale q k). q, k, v: heads of D = 4 HEAD_QUADS at a stride and an offset per token.
// Grid: a workgroup per (block of tokens, head), a thread per token. Milakov & Gimelshein 2018, Dao et al. 2022.

//#include "attention/parts/forward.wgsl"
//#include "attention/parts/unrolled.wgsl"

fn attend(queries: Block, own: u32, lane: u32) {
  let block = among_keys(queries);
  let token = own + params.first;
  let head = block.head;
  let start = first_key(token);
  let shared_at = shared_start(head);
  let q_at = q_start(own, head * HEAD_QUADS);
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var highest = LOWEST;
  var total = 0.0;
  for (var key = first_key(block.first); key <= block.last; key++) {
    let k_at = k_start(key, shared_at);
    let v_at = v_start(key, shared_at);
    var score = 0.0;
    for (var d = 0u; d < HEAD_QUADS; d++) {
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
    for (var d = 0u; d < HEAD_QUADS; d++) {
      sum[d] = sum[d] * keep + weight * v[v_at + d];
    }
  }
  if (block.first + lane > block.last) { return; }
  let row = own * params.heads + head;
  for (var d = 0u; d < HEAD_QUADS; d++) {
    result[row * HEAD_QUADS + d] = sum[d] / total;
  }
  statistics[row * 2u] = highest / LOG2_E + log(total);
}
