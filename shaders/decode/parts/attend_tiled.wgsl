// A workgroup's part of attention over the cache. The header of decode/attention_decode_tiled.wgsl says how it is divided.
// A kernel defines prepare(at, lane), which fills `query`, key_quad(at, d, is_own) and value_element(at, d, is_own).

//#include "parts/groups.wgsl"
//#include "attention/parts/softmax.wgsl"
//#include "decode/parts/pages.wgsl"
//#include "decode/parts/window.wgsl"

override HEAD_QUADS: u32 = 16u;

const THREADS = 64u;
// Keys of a page or a part of it.
const KEYS = 8u;
const BLOCKS = THREADS / KEYS;
// Scores are added as attention/tiled.wgsl adds them: four of every 16, then those sums.
const QUARTER = THREADS / 4u;
// Elements of the sum that a thread owns; heads of 256 have most, 4.
override OWN: u32 = (HEAD_QUADS * 4u + THREADS - 1u) / THREADS;

var<workgroup> query: array<vec4f, HEAD_QUADS>;
// Where the keys and values of a block start, in vec4s of either cache. A page holds whole blocks.
var<workgroup> starts: array<u32, BLOCKS>;
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;

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
  let quarter = params.heads * QUARTER / params.heads;
  let block = lane / KEYS;
  var sum = vec4f();
  var total = 0.0;
  var highest = LOWEST;
  for (var base = first_key / THREADS * THREADS; base <= position; base += THREADS) {
    let count = min(THREADS, position + 1u - base);
    var product = 0.0;
    let start = place(row, min(base + lane, position)) * key_stride + head_at;
    let is_own = base + lane >= position;
    for (var d = 0u; d < quads; d++) {
      let key = key_quad(start + d, d, is_own);
      product = fma(query[d].x, key.x, product);
      product = fma(query[d].y, key.y, product);
      product = fma(query[d].z, key.z, product);
      product = fma(query[d].w, key.w, product);
    }
    let is_seen = lane < count && base + lane >= first_key;
    let score = select(LOWEST, product, is_seen);
    scores[lane] = score;
    if (lane % KEYS == 0u) { starts[block] = start; }
    workgroupBarrier();
    let before = highest;
    for (var i = 0u; i < count; i++) {
      highest = max(highest, scores[i]);
    }
    let keep = exp2(before - highest);
    weights[lane] = select(0.0, exp2(score - highest), is_seen);
    workgroupBarrier();
    sum *= keep;
    var added = 0.0;
    for (var i = 0u; i < quarter; i++) {
      added += (weights[i] + weights[i + QUARTER]) + (weights[i + 2u * QUARTER] + weights[i + 3u * QUARTER]);
    }
    total = fma(total, keep, added);
    for (var first = 0u; first < count; first += KEYS) {
      var at = starts[first / KEYS];
      for (var i = first; i < min(first + KEYS, count); i++) {
        let weight = weights[i];
        let is_last = base + i == position;
        for (var n = 0u; n < OWN; n++) {
          let d = min(lane + n * THREADS, HEAD_QUADS * 4u - 1u);
          sum[n] = fma(weight, value_element(at, d, is_last), sum[n]);
        }
        at += key_stride;
      }
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
