// attention_backward_queries for GPUs and for wide heads: the same bindings, params and results.
//
// 64 rows of queries (token, head of a key head) by tiles of 64 keys, from the first that any of them sees: the tile's scores and the gradients of its
// weights, then its part of the rows' gradients.
// Grid: a workgroup per (64 rows, key head).

//#include "attention/parts/backward_queries.wgsl"
//#include "attention/parts/query_rows.wgsl"
//#include "attention/parts/tiled.wgsl"

var<workgroup> log_sums: array<vec4f, QUADS>;
var<workgroup> deltas: array<vec4f, QUADS>;

struct Kept { seen_from: u32, seen_to: u32, log_sum: f32, delta: f32 }

// Stages the threads' parts of rowsum(out_grad * out).
fn put_deltas(rows: Rows, thread: Thread) {
  let parts = THREADS / SIDE;
  let row = row_of(rows, thread.index / parts);
  let at = (row.token * params.heads + row.head) * HEAD_QUADS;
  var delta = vec4f();
  for (var d = thread.index % parts; d < HEAD_QUADS; d += parts) {
    delta = fma(out_grad[at + d], out[at + d], delta);
  }
  staged[thread.index] = delta;
}

// What row `i` of the tile needs, from the staged parts; keeps its sum.
fn kept_of(rows: Rows, i: u32) -> Kept {
  let parts = THREADS / SIDE;
  var sum = vec4f();
  for (var part = 0u; part < parts; part++) {
    sum += staged[i * parts + part];
  }
  let delta = dot(sum, vec4f(1.0));
  let row = row_of(rows, i);
  let at = (row.token * params.heads + row.head) * 2u;
  if (rows.first + i <= rows.last) { statistics[at + 1u] = delta; }
  return Kept(first_key(row.token), row.token + 1u, statistics[at] * LOG2_E, delta);
}

fn keep_rows(rows: Rows, quad: u32) {
  let x = kept_of(rows, quad * 4u);
  let y = kept_of(rows, quad * 4u + 1u);
  let z = kept_of(rows, quad * 4u + 2u);
  let w = kept_of(rows, quad * 4u + 3u);
  seen_from[quad] = vec4u(x.seen_from, y.seen_from, z.seen_from, w.seen_from);
  seen_to[quad] = vec4u(x.seen_to, y.seen_to, z.seen_to, w.seen_to);
  log_sums[quad] = vec4f(x.log_sum, y.log_sum, z.log_sum, w.log_sum);
  deltas[quad] = vec4f(x.delta, y.delta, z.delta, w.delta);
}

// The gradients of one column's scores.
fn score_grads(quad: u32, key: u32, scores: vec4f, weight_grads: vec4f) -> vec4f {
  let weights = select(vec4f(), exp2(scores - log_sums[quad]), is_seen(quad, key));
  return weights * (weight_grads - deltas[quad]);
}

fn four_grads(quad: u32, key: u32, scores: mat4x4f, weight_grads: mat4x4f) -> mat4x4f {
  return mat4x4f(
    score_grads(quad, key, scores[0], weight_grads[0]),
    score_grads(quad, key + QUADS, scores[1], weight_grads[1]),
    score_grads(quad, key + 2u * QUADS, scores[2], weight_grads[2]),
    score_grads(quad, key + 3u * QUADS, scores[3], weight_grads[3]),
  );
}

// Where rows and columns of a tile are found; `of_values` rather than of keys.
struct Sides { queries: vec4u, outs: vec4u, keys: vec4u, shared_at: u32, of_values: bool }

fn fetch(part: Part, sides: Sides, d: u32) -> mat4x4f {
  let quad = min(d + part.quad, HEAD_QUADS - 1u);
  if (part.side == 0u && sides.of_values) {
    let at = sides.outs + quad;
    return mat4x4f(out_grad[at.x], out_grad[at.y], out_grad[at.z], out_grad[at.w]);
  }
  if (part.side == 0u) {
    let at = sides.queries + quad;
    return mat4x4f(q[at.x], q[at.y], q[at.z], q[at.w]) * (params.scale * LOG2_E);
  }
  if (sides.of_values) {
    let at = four_values(sides.keys, sides.shared_at) + quad;
    return mat4x4f(v[at.x], v[at.y], v[at.z], v[at.w]);
  }
  let at = four_keys(sides.keys, sides.shared_at) + quad;
  return mat4x4f(k[at.x], k[at.y], k[at.z], k[at.w]);
}

fn attend(index: u32, thread: Thread) {
  let rows = rows_of(index);
  if (rows.first >= params.tokens * rows.sharing) { return; }
  let part = part_of(thread);
  let quads = hidden(HEAD_QUADS);
  let steps = (quads + DEPTH - 1u) / DEPTH;
  let shared_at = rows.key_head * HEAD_QUADS;
  let last = rows.last / rows.sharing;
  put_deltas(rows, thread);
  workgroupBarrier();
  if (thread.index < QUADS) { keep_rows(rows, thread.index); }
  let queries_at = four_queries(rows, part.place * 4u);
  let outs_at = four_outs(rows, part.place * 4u);
  var sums = Sums();
  for (var key = first_key(rows.first / rows.sharing); key <= last; key += SIDE) {
    let own_keys = min(vec4u(key + part.place) + vec4u(0u, 16u, 32u, 48u), vec4u(last));
    var scores = Scores();
    var grads = Scores();
    // Products of queries with keys, then of gradients with values.
    for (var step = 0u; step < 2u * steps; step++) {
      if (step == steps) {
        scores = grads;
        grads = Scores();
      }
      let d = select(step, step - steps, step >= steps) * DEPTH;
      if (part.side < 2u) { put_lines(part, fetch(part, Sides(queries_at, outs_at, own_keys, shared_at, step >= steps), d)); }
      workgroupBarrier();
      add_products(&grads, thread, min(DEPTH, quads - d) * 4u);
      workgroupBarrier();
    }
    grads.low = four_grads(thread.y, key + thread.x, scores.low, grads.low);
    if (HALVES == 2u) {
      grads.high = four_grads(thread.y + HEIGHT, key + thread.x, scores.high, grads.high);
    }
    let chunks = chunks_of(last + 1u - key);
    for (var chunk = 0u; chunk < chunks; chunk++) {
      let column = column_of(chunk);
      if (column % QUADS == 0u) { put_scores(LEFT, thread, &grads); }
      let count = min(CHUNK, QUADS - column % QUADS);
      for (var i = thread.index; i < count * HEAD_QUADS; i += THREADS) {
        let row = i / HEAD_QUADS;
        staged[i] = k[k_start(min(key + column + row, last), shared_at) + i - row * HEAD_QUADS];
      }
      workgroupBarrier();
      add_weighted(&sums, thread, LEFT + column % QUADS * PITCH, count);
      workgroupBarrier();
    }
  }
  let count = hidden(4u * HALVES * OWN);
  for (var i = 0u; i < count; i++) {
    let place = place_of(thread, i);
    if (rows.first + place.row <= rows.last && place.quad < HEAD_QUADS) {
      let row = row_of(rows, place.row);
      q_grad[grad_start(row.token, row.head) + place.quad] = sums.a[0] * params.scale;
    }
    sums = shifted(sums);
  }
}
