// A workgroup's part of attention over the cache. The header of decode/attention_decode_tiled.wgsl says how it is divided.
// A kernel includes all_chunks.wgsl or one_chunk.wgsl, and defines prepare(part, position, lane), query_quad(row, head, position, d),
// key_quad(at, d, is_own) and value_quad(at, d, is_own).

//#include "parts/groups.wgsl"
//#include "attention/parts/softmax.wgsl"
//#include "attention/parts/merge.wgsl"
//#include "decode/parts/pages.wgsl"
//#include "decode/parts/window.wgsl"

override HEAD_QUADS: u32 = 16u;
// Query heads of a workgroup, all of one key head: at most 8.
override SHARED: u32 = 1u;
override FOURS: u32 = (SHARED + 3u) / 4u;

const THREADS = CHUNK_KEYS;
// Scores are added as attention/tiled.wgsl adds them: 64 at a time, four of every 16, then those sums.
const TILE = 64u;
const TILES = CHUNK_KEYS / TILE;
const QUARTER = TILE / 4u;
// Threads that look for the highest score of a head in a tile.
const SEEKERS = 8u;
// Vec4s of values that are staged at a time, one by a thread.
const STAGES = 4u;

// Values that are staged at a time: a power of two, so that a tile has whole ones.
override STAGED_KEYS: u32 = 16u;

// A thread of the values' sums owns one element of OWN heads.
override WIDTH: u32 = HEAD_QUADS * 4u;
override TEAMS: u32 = THREADS / WIDTH;
override OWN: u32 = (SHARED + TEAMS - 1u) / TEAMS;

// [4 HEAD_QUADS, FOURS]: an element of four heads.
var<workgroup> queries: array<vec4f, WIDTH * FOURS>;
// Where the keys and values of a page start, in vec4s of either cache.
var<workgroup> starts: array<u32, CHUNK_KEYS / PAGE>;
// [SHARED, CHUNK_KEYS]: scores, then weights.
var<workgroup> weights: array<f32, SHARED * CHUNK_KEYS>;
// [SHARED, TILES, QUARTER]: of parts of a tile.
var<workgroup> parts: array<f32, SHARED * TILES * QUARTER>;
// [SHARED, TILES]: the highest score so far, and what is left of the sums before.
var<workgroup> highest: array<f32, SHARED * TILES>;
var<workgroup> keeps: array<f32, SHARED * TILES>;
var<workgroup> totals: array<f32, SHARED>;
var<workgroup> staged: array<vec4f, THREADS>;

// A workgroup's row, key head and query heads, and its chunks.
struct Part { row: u32, key_head: u32, first_head: u32, first_chunk: u32, last_chunk: u32 }

// Of the row, its position, the first key that it sees, and where its key head lies.
struct Context { position: u32, first_key: u32, head_at: u32, key_stride: u32 }

// Of a thread's own heads: the highest score, the weights' total, and sums of one element.
struct State { highest: array<vec4f, 2>, total: array<vec4f, 2>, sum: array<vec4f, 2> }

// The same of one head.
struct Sum { sum: f32, total: f32, highest: f32 }

// Brings the next head to the front: what only constants index stays in registers.
fn shifted(heads: array<vec4f, 2>) -> array<vec4f, 2> {
  return array(vec4f(heads[0].yzw, heads[1].x), vec4f(heads[1].yzw, 0.0));
}

// A workgroup of `index`, of which those of a row are for its heads.
fn heads_of(index: u32) -> Part {
  let sharing = params.heads / params.key_heads;
  let blocks = (sharing + SHARED - 1u) / SHARED;
  let block = index % blocks;
  let key_head = index / blocks % params.key_heads;
  return Part(index / blocks / params.key_heads, key_head, block * SHARED, 0u, 0u);
}

// Query head `i` of the workgroup; the last one of the key head behind its end.
fn head_of(part: Part, i: u32) -> u32 {
  let sharing = params.heads / params.key_heads;
  return part.key_head * sharing + min(part.first_head + i, sharing - 1u);
}

fn put_queries(part: Part, position: u32, lane: u32) {
  for (var i = lane; i < HEAD_QUADS * FOURS; i += THREADS) {
    let d = i / FOURS;
    let head = i % FOURS * 4u;
    let elements = transpose(mat4x4f(
      query_quad(part.row, head_of(part, head), position, d),
      query_quad(part.row, head_of(part, head + 1u), position, d),
      query_quad(part.row, head_of(part, head + 2u), position, d),
      query_quad(part.row, head_of(part, head + 3u), position, d),
    ));
    let at = d * 4u * FOURS + i % FOURS;
    queries[at] = elements[0];
    queries[at + FOURS] = elements[1];
    queries[at + 2u * FOURS] = elements[2];
    queries[at + 3u * FOURS] = elements[3];
  }
}

fn put_four(first: u32, lane: u32, scores: vec4f) {
  let at = first * CHUNK_KEYS + lane;
  weights[at] = scores.x;
  if (first + 1u < SHARED) { weights[at + CHUNK_KEYS] = scores.y; }
  if (first + 2u < SHARED) { weights[at + 2u * CHUNK_KEYS] = scores.z; }
  if (first + 3u < SHARED) { weights[at + 3u * CHUNK_KEYS] = scores.w; }
}

fn add_element(products: array<vec4f, 2>, at: u32, key: f32) -> array<vec4f, 2> {
  let low = fma(queries[at], vec4f(key), products[0]);
  if (FOURS == 1u) { return array(low, products[1]); }
  return array(low, fma(queries[at + 1u], vec4f(key), products[1]));
}

// The thread's key of the chunk at `base`, times the queries of all heads.
fn put_scores(row: u32, context: Context, base: u32, lane: u32) {
  let key_at = base + lane;
  let start = place(row, min(key_at, context.position)) * context.key_stride + context.head_at;
  if (lane % PAGE == 0u) { starts[lane / PAGE] = start; }
  var products = array(vec4f(LOWEST), vec4f(LOWEST));
  if (key_at >= context.first_key && key_at <= context.position) {
    products = array(vec4f(), vec4f());
    let quads = hidden(HEAD_QUADS);
    for (var d = 0u; d < quads; d++) {
      let key = key_quad(start + d, d, key_at == context.position);
      products = add_element(products, d * 4u * FOURS, key.x);
      products = add_element(products, (d * 4u + 1u) * FOURS, key.y);
      products = add_element(products, (d * 4u + 2u) * FOURS, key.z);
      products = add_element(products, (d * 4u + 3u) * FOURS, key.w);
    }
  }
  put_four(0u, lane, products[0]);
  if (FOURS > 1u) { put_four(4u, lane, products[1]); }
}

// Highest scores of all tiles, each of those before it as well.
fn seek_highest(lane: u32) {
  let reach = hidden(TILE / SEEKERS);
  if (lane < SHARED * TILES * SEEKERS) {
    let start = lane / SEEKERS * TILE + lane % SEEKERS;
    var most = LOWEST;
    for (var i = 0u; i < reach; i++) { most = max(most, weights[start + i * SEEKERS]); }
    parts[lane] = most;
  }
  workgroupBarrier();
  if (lane < SHARED * TILES) {
    let tile = lane % TILES;
    let seekers = hidden(SEEKERS);
    var before = LOWEST;
    var most = LOWEST;
    for (var i = lane - tile; i <= lane; i++) {
      before = most;
      for (var j = 0u; j < seekers; j++) { most = max(most, parts[i * SEEKERS + j]); }
    }
    highest[lane] = most;
    keeps[lane] = exp2(before - most);
  }
  workgroupBarrier();
}

fn weigh(context: Context, base: u32, lane: u32) {
  let is_seen = base + lane >= context.first_key && base + lane <= context.position;
  let heads = hidden(SHARED);
  for (var head = 0u; head < heads; head++) {
    let at = head * CHUNK_KEYS + lane;
    weights[at] = select(0.0, exp2(weights[at] - highest[head * TILES + lane / TILE]), is_seen);
  }
  workgroupBarrier();
  for (var i = lane; i < SHARED * TILES * QUARTER; i += THREADS) {
    let at = i / QUARTER * TILE + i % QUARTER;
    parts[i] = (weights[at] + weights[at + QUARTER]) + (weights[at + 2u * QUARTER] + weights[at + 3u * QUARTER]);
  }
  workgroupBarrier();
  if (lane < SHARED) {
    let quarter = hidden(QUARTER);
    var total = 0.0;
    for (var tile = lane * TILES; tile < (lane + 1u) * TILES; tile++) {
      var added = 0.0;
      for (var i = 0u; i < quarter; i++) { added += parts[tile * QUARTER + i]; }
      total = fma(total, keeps[tile], added);
    }
    totals[lane] = total;
  }
}

// Where what a thread knows of its own heads lies: head `i` of four from `first` on.
fn own_head(first: u32, i: u32) -> u32 {
  return min(first + i, SHARED - 1u);
}

fn own_weights(first: u32, at: u32) -> vec4f {
  var found = vec4f(weights[own_head(first, 0u) * CHUNK_KEYS + at]);
  if (OWN > 1u) { found.y = weights[own_head(first, 1u) * CHUNK_KEYS + at]; }
  if (OWN > 2u) { found.z = weights[own_head(first, 2u) * CHUNK_KEYS + at]; }
  if (OWN > 3u) { found.w = weights[own_head(first, 3u) * CHUNK_KEYS + at]; }
  return found;
}

fn own_keeps(first: u32, tile: u32) -> vec4f {
  return vec4f(
    keeps[own_head(first, 0u) * TILES + tile],
    keeps[own_head(first, 1u) * TILES + tile],
    keeps[own_head(first, 2u) * TILES + tile],
    keeps[own_head(first, 3u) * TILES + tile],
  );
}

fn own_highest(first: u32) -> vec4f {
  return vec4f(
    highest[own_head(first, 0u) * TILES + TILES - 1u],
    highest[own_head(first, 1u) * TILES + TILES - 1u],
    highest[own_head(first, 2u) * TILES + TILES - 1u],
    highest[own_head(first, 3u) * TILES + TILES - 1u],
  );
}

fn own_totals(first: u32) -> vec4f {
  return vec4f(
    totals[own_head(first, 0u)],
    totals[own_head(first, 1u)],
    totals[own_head(first, 2u)],
    totals[own_head(first, 3u)],
  );
}

// Of values from `key` of the chunk on, as many as are staged at a time, the thread's vec4.
fn fetch(context: Context, base: u32, key: u32, lane: u32) -> vec4f {
  let at = key + lane / HEAD_QUADS;
  if (at >= CHUNK_KEYS || base + at > context.position) { return vec4f(); }
  let quad = lane % HEAD_QUADS;
  let start = starts[at / PAGE] + at % PAGE * context.key_stride;
  return value_quad(start + quad, quad, base + at == context.position);
}

// Adds `count` values, which are staged, times their weights from `at` on, one after another.
fn add_values(sums: array<vec4f, 2>, at: u32, count: u32, lane: u32) -> array<vec4f, 2> {
  let team = lane / WIDTH;
  let element = lane % WIDTH;
  var low = sums[0];
  var high = sums[1];
  for (var i = 0u; i < count; i++) {
    let value = staged[i * HEAD_QUADS + element / 4u][element % 4u];
    low = fma(own_weights(team * OWN, at + i), vec4f(value), low);
    if (OWN > 4u) { high = fma(own_weights(team * OWN + 4u, at + i), vec4f(value), high); }
  }
  return array(low, high);
}

// Sums of the values of the chunk at `base`.
fn values_of(context: Context, base: u32, lane: u32) -> array<vec4f, 2> {
  let count = min(CHUNK_KEYS, context.position + 1u - base);
  let own = lane / WIDTH * OWN;
  var sums = array(vec4f(), vec4f());
  var ahead = mat4x4f();
  let start = (max(context.first_key, base) - base) / TILE * TILE;
  for (var key = start; key < count; key += STAGED_KEYS) {
    if ((key - start) % (STAGES * STAGED_KEYS) == 0u) {
      ahead = mat4x4f(
        fetch(context, base, key, lane),
        fetch(context, base, key + STAGED_KEYS, lane),
        fetch(context, base, key + 2u * STAGED_KEYS, lane),
        fetch(context, base, key + 3u * STAGED_KEYS, lane),
      );
    }
    workgroupBarrier();
    staged[lane] = ahead[0];
    ahead = mat4x4f(ahead[1], ahead[2], ahead[3], vec4f());
    workgroupBarrier();
    if (key % TILE == 0u) {
      sums[0] *= own_keeps(own, key / TILE);
      if (OWN > 4u) { sums[1] *= own_keeps(own + 4u, key / TILE); }
    }
    if (own < SHARED) { sums = add_values(sums, key, min(STAGED_KEYS, count - key), lane); }
  }
  return sums;
}

// Folds the heads 4 i to 4 i + 3 of a chunk into the state.
fn fold_four(state: ptr<function, State>, i: u32, first: u32, sum: vec4f) {
  let added = own_highest(first);
  let factors = fold_of((*state).highest[i], added);
  (*state).sum[i] = fold((*state).sum[i], factors.keep, sum, factors.add);
  (*state).total[i] = fold((*state).total[i], factors.keep, own_totals(first), factors.add);
  (*state).highest[i] = max((*state).highest[i], added);
}

// A bound that a compiler cannot see through: software drivers take long over these loops unrolled.
fn hidden(bound: u32) -> u32 {
  return params.heads * bound / params.heads;
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let part = part_of(group_index(group));
  if (part.row >= params.rows || part.first_chunk > part.last_chunk) { return; }
  let position = positions[part.row] + params.shift;
  let context = Context(position, first_seen(position), part.key_head * HEAD_QUADS, params.key_heads * HEAD_QUADS);
  prepare(part, position, lane);
  put_queries(part, position, lane);
  workgroupBarrier();
  let own = lane / WIDTH * OWN;
  var state = State();
  state.highest = array(vec4f(LOWEST), vec4f(LOWEST));
  for (var chunk = part.first_chunk; chunk <= part.last_chunk; chunk++) {
    let base = chunk * CHUNK_KEYS;
    put_scores(part.row, context, base, lane);
    workgroupBarrier();
    seek_highest(lane);
    weigh(context, base, lane);
    let sums = values_of(context, base, lane);
    fold_four(&state, 0u, own, sums[0]);
    if (OWN > 4u) { fold_four(&state, 1u, own + 4u, sums[1]); }
    workgroupBarrier();
  }
  let sharing = params.heads / params.key_heads;
  for (var i = own; i < own + OWN; i++) {
    if (i < SHARED && part.first_head + i < sharing) {
      store(part, head_of(part, i), lane % WIDTH, Sum(state.sum[0].x, state.total[0].x, state.highest[0].x));
    }
    state = State(shifted(state.highest), shifted(state.total), shifted(state.sum));
  }
}
