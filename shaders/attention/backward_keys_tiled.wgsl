// attention_backward_keys for GPUs and for wide heads: the same bindings, params and results.
//
// 64 rows of keys by tiles of 64 queries (token, head of the key head), token by token: the tile's weights and the gradients of its
// scores, then its part of the gradients of values and of keys.
// Grid: a workgroup per (64 tokens, key head).

//#include "attention/parts/backward_keys.wgsl"
//#include "attention/parts/tiled.wgsl"

// Of each key its token, and the one behind the last that sees it.
var<workgroup> tokens: array<vec4u, QUADS>;
var<workgroup> tokens_to: array<vec4u, QUADS>;
// Of the queries of a tile.
var<workgroup> query_tokens: array<u32, SIDE>;
var<workgroup> queries_at: array<u32, SIDE>;
var<workgroup> outs_at: array<u32, SIDE>;
var<workgroup> log_sums: array<f32, SIDE>;
var<workgroup> deltas: array<f32, SIDE>;

// What no key is seen by.
const NO_TOKEN = 0xffffffffu;

fn keep_keys(block: Block, quad: u32) {
  let own = vec4u(block.first + quad * 4u) + vec4u(0u, 1u, 2u, 3u);
  let kept = min(own, vec4u(block.last));
  let ends = vec4u(queries_end(kept.x), queries_end(kept.y), queries_end(kept.z), queries_end(kept.w));
  tokens[quad] = own;
  tokens_to[quad] = select(ends, vec4u(), own > vec4u(block.last));
}

// Query `row` of all (token, head of the key head), as number `i` of a tile.
fn keep_query(block: Block, i: u32, row: u32, end: u32) {
  let sharing = params.heads / params.key_heads;
  let token = min(row, end - 1u) / sharing;
  let head = block.head * sharing + min(row, end - 1u) - token * sharing;
  let at = token * params.heads + head;
  let kept = statistics[at];
  query_tokens[i] = select(token, NO_TOKEN, row >= end);
  queries_at[i] = q_start(token, head * HEAD_QUADS);
  outs_at[i] = at * HEAD_QUADS;
  log_sums[i] = kept.x * LOG2_E;
  deltas[i] = kept.y;
}

// Weights of four keys for query `i`.
fn weights_of(quad: u32, i: u32, scores: vec4f) -> vec4f {
  let token = vec4u(query_tokens[i]);
  let is_seen = (token >= tokens[quad]) & (token < tokens_to[quad]);
  return select(vec4f(), exp2(scores - log_sums[i]), is_seen);
}

fn four_weights(quad: u32, x: u32, scores: mat4x4f) -> mat4x4f {
  return mat4x4f(
    weights_of(quad, x, scores[0]),
    weights_of(quad, x + QUADS, scores[1]),
    weights_of(quad, x + 2u * QUADS, scores[2]),
    weights_of(quad, x + 3u * QUADS, scores[3]),
  );
}

fn four_grads(x: u32, weights: mat4x4f, weight_grads: mat4x4f) -> mat4x4f {
  return mat4x4f(
    weights[0] * (weight_grads[0] - deltas[x]),
    weights[1] * (weight_grads[1] - deltas[x + QUADS]),
    weights[2] * (weight_grads[2] - deltas[x + 2u * QUADS]),
    weights[3] * (weight_grads[3] - deltas[x + 3u * QUADS]),
  );
}

// Where columns of a tile are found; `of_values` rather than of keys.
struct Sides { keys: vec4u, shared_at: u32, of_values: bool }

fn query_quad(i: u32, quad: u32, is_grad: bool) -> vec4f {
  if (is_grad) { return out_grad[outs_at[i] + quad]; }
  return q[queries_at[i] + quad];
}

fn fetch(part: Part, sides: Sides, d: u32) -> mat4x4f {
  let quad = min(d + part.quad, HEAD_QUADS - 1u);
  if (part.side == 1u) {
    return mat4x4f(
      query_quad(part.place, quad, sides.of_values),
      query_quad(part.place + QUADS, quad, sides.of_values),
      query_quad(part.place + 2u * QUADS, quad, sides.of_values),
      query_quad(part.place + 3u * QUADS, quad, sides.of_values),
    );
  }
  if (sides.of_values) {
    let at = four_values(sides.keys, sides.shared_at) + quad;
    return mat4x4f(v[at.x], v[at.y], v[at.z], v[at.w]);
  }
  let at = four_keys(sides.keys, sides.shared_at) + quad;
  return mat4x4f(k[at.x], k[at.y], k[at.z], k[at.w]) * (params.scale * LOG2_E);
}

fn attend(index: u32, thread: Thread) {
  let block = block_of(index, params.key_heads, SIDE);
  if (block.first >= params.tokens) { return; }
  let part = part_of(thread);
  let quads = hidden(HEAD_QUADS);
  let steps = (quads + DEPTH - 1u) / DEPTH;
  let sharing = params.heads / params.key_heads;
  let own_keys = min(vec4u(block.first + part.place * 4u) + vec4u(0u, 1u, 2u, 3u), vec4u(block.last));
  let shared_at = block.head * HEAD_QUADS;
  let end = queries_end(block.last) * sharing;
  if (thread.index < QUADS) { keep_keys(block, thread.index); }
  var value_sums = Sums();
  var key_sums = Sums();
  for (var row = block.first * sharing; row < end; row += SIDE) {
    if (thread.index < SIDE) { keep_query(block, thread.index, row + thread.index, end); }
    workgroupBarrier();
    var scores = Scores();
    var grads = Scores();
    // Products of keys with queries, then of values with gradients.
    for (var step = 0u; step < 2u * steps; step++) {
      if (step == steps) {
        scores = grads;
        grads = Scores();
      }
      let d = select(step, step - steps, step >= steps) * DEPTH;
      if (part.side < 2u) { put_lines(part, fetch(part, Sides(own_keys, shared_at, step >= steps), d)); }
      workgroupBarrier();
      add_products(&grads, thread, min(DEPTH, quads - d) * 4u);
      workgroupBarrier();
    }
    scores.low = four_weights(thread.y, thread.x, scores.low);
    grads.low = four_grads(thread.x, scores.low, grads.low);
    if (HALVES == 2u) {
      scores.high = four_weights(thread.y + HEIGHT, thread.x, scores.high);
      grads.high = four_grads(thread.x, scores.high, grads.high);
    }
    // Gradients by weights, then queries by the gradients of scores.
    let chunks = chunks_of(end - row);
    var sums = value_sums;
    for (var chunk = 0u; chunk < 2u * chunks; chunk++) {
      if (chunk == chunks) {
        scores = grads;
        value_sums = sums;
        sums = key_sums;
      }
      let column = column_of(chunk % chunks);
      if (column % QUADS == 0u) { put_scores(LEFT, thread, &scores); }
      let count = min(CHUNK, QUADS - column % QUADS);
      for (var i = thread.index; i < count * HEAD_QUADS; i += THREADS) {
        let query = i / HEAD_QUADS;
        staged[i] = query_quad(column + query, i - query * HEAD_QUADS, chunk < chunks);
      }
      workgroupBarrier();
      add_weighted(&sums, thread, LEFT + column % QUADS * PITCH, count);
      workgroupBarrier();
    }
    key_sums = sums;
  }
  let count = hidden(4u * HALVES * OWN);
  for (var i = 0u; i < count; i++) {
    let place = place_of(thread, i);
    let token = block.first + place.row;
    if (token <= block.last && place.quad < HEAD_QUADS) {
      key_value_grad[dk_start(token, block.head) + place.quad] = key_sums.a[0] * params.scale;
      key_value_grad[dv_start(token, block.head) + place.quad] = value_sums.a[0];
    }
    key_sums = shifted(key_sums);
    value_sums = shifted(value_sums);
  }
}
