// attention for GPUs and for wide heads: the same bindings, params and results.
//
// ROWS queries of one head stay in workgroup memory; keys and values pass through it 8 at a time. Thread (row, lane)
// scores query `row` with key `lane` of a tile, then owns vec4s lane, lane + 8, .. of the row's running sum.
// Tiles begin at the sequence's own first key, whatever the window, and every fma that a compiler could choose is written out: where a sequence
// lies among others, or whether its keys come from a cache (decode/attention_decode_tiled.wgsl), changes no bit.
// Grid: a workgroup per (ROWS tokens, head).

//#include "attention/parts/forward.wgsl"
//#include "attention/parts/key_tiles.wgsl"

var<workgroup> queries: array<vec4f, ROWS * PITCH>;
var<workgroup> scores: array<f32, THREADS>;

fn attend(block: Block, token: u32, row: u32, lane: u32) {
  let head = block.head;
  let thread = row * LANES + lane;
  let quads = hidden(HEAD_QUADS);
  let lanes = hidden(LANES);
  let shared_at = shared_start(head);
  let q_at = q_start(token, head * HEAD_QUADS);
  for (var d = lane; d < HEAD_QUADS; d += LANES) {
    queries[row * PITCH + d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var sum: array<vec4f, MAX_OWN>;
  // Keys below it are outside the token's window.
  let unseen = first_key(token);
  var highest = LOWEST;
  var total = 0.0;
  // One round for each sequence that the block has tokens of.
  for (var segment = block.first; segment <= block.last;) {
    let start = sequence_start[segment];
    var end = block.last + 1u;
    if (sequence_start[block.last] != start) {
      for (end = segment + 1u; sequence_start[end] == start; end++) {}
    }
    // Tiles lie at multiples of LANES from the sequence's first key; those below the window of every token are left out.
    let oldest = first_key(segment) - start;
    // Keys below it are those that the token sees; none in another sequence's round.
    let seen = select(0u, token + 1u, token >= segment && token < end);
    for (var key = start + oldest / LANES * LANES; key < end; key += LANES) {
      load_keys(thread, key, end - 1u, shared_at);
      workgroupBarrier();
      var products = vec4f();
      for (var d = 0u; d < quads; d++) {
        products = fma(queries[row * PITCH + d], keys[lane * PITCH + d], products);
      }
      let score = (products.x + products.y) + (products.z + products.w);
      scores[thread] = select(LOWEST, score, key + lane < seen && key + lane >= unseen);
      workgroupBarrier();
      if (key < seen && key + LANES > unseen) {
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
        for (var i = max(key, unseen) - key; i < min(lanes, seen - key); i++) {
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
  if (block.first + row > block.last) { return; }
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
