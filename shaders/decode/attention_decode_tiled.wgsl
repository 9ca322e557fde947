// attention_decode for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes one (row, head), 64 positions of the cache at a time: a thread scores one of them, weighs it, then adds
// up one element of every value. Sums run over 8 keys at a time in the order of attention/tiled.wgsl, and every fma that
// a compiler could choose is written out, so that the bits are the same.
// Grid: a workgroup per (row, head).

//#include "parts/groups.wgsl"
//#include "attention/parts/softmax.wgsl"
//#include "decode/parts/cached_attention.wgsl"

override HEAD_QUADS: u32 = 16u;

const THREADS = 64u;
// Keys that one rescaling of the sum is for.
const KEYS = 8u;
const BLOCKS = THREADS / KEYS;
// Elements of the sum that a thread owns; heads of 128 have most.
override OWN: u32 = (HEAD_QUADS * 4u + THREADS - 1u) / THREADS;

var<workgroup> query: array<vec4f, HEAD_QUADS>;
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> keeps: array<f32, BLOCKS>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let flat = group_index(group);
  if (flat >= params.rows * params.heads) { return; }
  let row = flat / params.heads;
  let head = flat - row * params.heads;
  let length = length_of(row);
  let key_stride = params.key_heads * HEAD_QUADS;
  let at = cache_start(row, head);
  let q_at = q_start(row, head);
  if (lane < HEAD_QUADS) {
    query[lane] = q[q_at + lane] * (params.scale * LOG2_E);
  }
  workgroupBarrier();
  // Bounds that a compiler cannot see through: software drivers take long over these loops unrolled.
  let quads = params.heads * HEAD_QUADS / params.heads;
  let block = lane / KEYS;
  var sum = vec2f();
  var total = 0.0;
  var highest = LOWEST;
  for (var base = 0u; base < length; base += THREADS) {
    let count = min(THREADS, length - base);
    var products = vec4f();
    let key_at = at + min(base + lane, length - 1u) * key_stride;
    for (var d = 0u; d < quads; d++) {
      products = fma(query[d], keys[key_at + d], products);
    }
    let score = (products.x + products.y) + (products.z + products.w);
    scores[lane] = select(LOWEST, score, lane < count);
    workgroupBarrier();
    // The highest score up to the end of each block: before the lane's own, of its own, of all.
    var before = highest;
    for (var i = 0u; i < block * KEYS; i++) {
      before = max(before, scores[i]);
    }
    var own = before;
    for (var i = block * KEYS; i < (block + 1u) * KEYS; i++) {
      own = max(own, scores[i]);
    }
    for (var i = 0u; i < count; i++) {
      highest = max(highest, scores[i]);
    }
    weights[lane] = exp2(score - own);
    if (lane % KEYS == 0u) {
      keeps[block] = exp2(before - own);
    }
    workgroupBarrier();
    for (var first = 0u; first < count; first += KEYS) {
      let keep = keeps[first / KEYS];
      sum *= keep;
      var added = 0.0;
      for (var i = first; i < min(first + KEYS, count); i++) {
        let weight = weights[i];
        added += weight;
        for (var n = 0u; n < OWN; n++) {
          let d = min(lane + n * THREADS, HEAD_QUADS * 4u - 1u);
          sum[n] = fma(weight, values[at + (base + i) * key_stride + d / 4u][d % 4u], sum[n]);
        }
      }
      total = fma(total, keep, added);
    }
    workgroupBarrier();
  }
  let to = flat * HEAD_QUADS;
  for (var n = 0u; n < OWN; n++) {
    let d = lane + n * THREADS;
    if (d < HEAD_QUADS * 4u) {
      result[to + d / 4u][d % 4u] = sum[n] / total;
    }
  }
}
