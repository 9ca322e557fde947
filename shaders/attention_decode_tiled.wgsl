// attention_decode for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes one (row, head), 64 positions of the cache at a time: a thread scores one of them, then adds up one
// vec4 of every part-th value. The parts are joined at the end.
// Grid: a workgroup per (row, head).

struct Params {
  rows: u32,
  heads: u32,
  key_heads: u32,
  q_stride: u32,
  q_offset: u32,
  max_length: u32,
  shift: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> keys: array<vec4f>;
@group(0) @binding(2) var<storage, read> values: array<vec4f>;
@group(0) @binding(3) var<storage, read> slots: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> result: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

override HEAD_QUADS: u32 = 16u;

const THREADS = 64u;
// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
const LOWEST = -1e30;

var<workgroup> query: array<vec4f, HEAD_QUADS>;
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> sums: array<vec4f, THREADS>;
var<workgroup> totals: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let flat = group.y * groups.x + group.x;
  if (flat >= params.rows * params.heads) {
    return;
  }
  let row = flat / params.heads;
  let head = flat - row * params.heads;
  let length = min(positions[row] + params.shift + 1u, params.max_length);
  let key_stride = params.key_heads * HEAD_QUADS;
  let at = slots[row] * params.max_length * key_stride + head * params.key_heads / params.heads * HEAD_QUADS;
  let q_at = (row * params.q_stride + params.q_offset) / 4u + head * HEAD_QUADS;
  if (thread < HEAD_QUADS) {
    query[thread] = q[q_at + thread] * (params.scale * LOG2_E);
  }
  workgroupBarrier();
  // Bounds that a compiler cannot see through: software drivers take long over these loops unrolled.
  let quads = params.heads * HEAD_QUADS / params.heads;
  let threads = params.heads * THREADS / params.heads;
  let parts = THREADS / HEAD_QUADS;
  let part = thread / HEAD_QUADS;
  let quad = thread - part * HEAD_QUADS;
  var sum = vec4f();
  var total = 0.0;
  var highest = LOWEST;
  for (var base = 0u; base < length; base += THREADS) {
    var products = vec4f();
    let key_at = at + min(base + thread, length - 1u) * key_stride;
    for (var d = 0u; d < quads; d++) {
      products += query[d] * keys[key_at + d];
    }
    scores[thread] = select(LOWEST, dot(products, vec4f(1.0)), base + thread < length);
    workgroupBarrier();
    var higher = highest;
    for (var i = 0u; i < threads; i++) {
      higher = max(higher, scores[i]);
    }
    workgroupBarrier();
    scores[thread] = exp2(scores[thread] - higher);
    workgroupBarrier();
    let keep = exp2(highest - higher);
    highest = higher;
    sum *= keep;
    total *= keep;
    let end = select(0u, min(THREADS, length - base), part < parts);
    for (var i = part; i < end; i += parts) {
      total += scores[i];
      sum += scores[i] * values[at + (base + i) * key_stride + quad];
    }
    workgroupBarrier();
  }
  sums[thread] = sum;
  totals[thread] = total;
  workgroupBarrier();
  if (part == 0u) {
    for (var i = 1u; i < parts; i++) {
      sum += sums[i * HEAD_QUADS + quad];
      total += totals[i * HEAD_QUADS + quad];
    }
    result[flat * HEAD_QUADS + quad] = sum / total;
  }
}
