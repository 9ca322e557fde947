// A workgroup's part of attention over the cache. The header of decode/attention_decode_tiled.wgsl says how it is divided.
// A kernel defines prepare(at, lane), which fills `query`, key_quad(at, d, is_own) and value_element(at, d, is_own).

//#include "parts/groups.wgsl"
//#include "attention/parts/softmax.wgsl"
//#include "decode/parts/pages.wgsl"
//#include "decode/parts/window.wgsl"

override HEAD_QUADS: u32 = 16u;

const THREADS = 64u;
// Keys that one rescaling of the sum is for.
const KEYS = 8u;
const BLOCKS = THREADS / KEYS;
// Elements of the sum that a thread owns; heads of 256 have most, 4.
override OWN: u32 = (HEAD_QUADS * 4u + THREADS - 1u) / THREADS;

var<workgroup> query: array<vec4f, HEAD_QUADS>;
// Where the keys and values of a block start, in vec4s of either cache. A page holds whole blocks.
var<workgroup> starts: array<u32, BLOCKS>;
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> keeps: array<f32, BLOCKS>;

// A new query, and its place among all.
struct Query { row: u32, head: u32, position: u32 }

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let flat = group_index(group);
  if (flat >= params.rows * params.heads) { return; }
  let row = flat / params.heads;
  let head = flat - row * params.heads;
  let position = positions[row] + params.shift;
  let first_key = first_seen(position);
  let key_stride = params.key_heads * HEAD_QUADS;
  let head_at = head * params.key_heads / params.heads * HEAD_QUADS;
  prepare(Query(row, head, position), lane);
  workgroupBarrier();
  // Bounds that a compiler cannot see through: software drivers take long over these loops unrolled.
  let quads = params.heads * HEAD_QUADS / params.heads;
  let block = lane / KEYS;
  var sum = vec4f();
  var total = 0.0;
  var highest = LOWEST;
  for (var base = first_key / KEYS * KEYS; base <= position; base += THREADS) {
    let count = min(THREADS, position + 1u - base);
    var products = vec4f();
    let start = place(row, min(base + lane, position)) * key_stride + head_at;
    let is_own = base + lane >= position;
    for (var d = 0u; d < quads; d++) {
      products = fma(query[d], key_quad(start + d, d, is_own), products);
    }
    let is_seen = lane < count && base + lane >= first_key;
    let score = select(LOWEST, (products.x + products.y) + (products.z + products.w), is_seen);
    scores[lane] = score;
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
      starts[block] = start;
    }
    workgroupBarrier();
    for (var first = 0u; first < count; first += KEYS) {
      let keep = keeps[first / KEYS];
      var at = starts[first / KEYS];
      sum *= keep;
      var added = 0.0;
      for (var i = first; i < min(first + KEYS, count); i++) {
        let weight = weights[i];
        let is_last = base + i == position;
        added += weight;
        for (var n = 0u; n < OWN; n++) {
          let d = min(lane + n * THREADS, HEAD_QUADS * 4u - 1u);
          sum[n] = fma(weight, value_element(at, d, is_last), sum[n]);
        }
        at += key_stride;
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
