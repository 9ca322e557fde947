// attention for GPUs and for wide heads: the same bindings, params and results.
//
// 64 rows of queries (token, head of a key head) by tiles of 64 keys. Each sequence that the rows have tokens of is a round of its own, whose
// tiles lie at multiples of 64 keys from its first one, whatever the window; one rescaling of the sums is for a tile, and every 256 keys they
// are folded (parts/merge.wgsl). Every fma that a compiler could choose is written out. So where a sequence lies among others, or whether its keys come from a cache (decode/attention_decode_tiled.wgsl),
// changes no bit.
// Grid: a workgroup per (64 rows, key head).

//#include "attention/parts/forward.wgsl"
//#include "attention/parts/merge.wgsl"
//#include "attention/parts/query_rows.wgsl"
//#include "attention/parts/tiled.wgsl"

var<workgroup> highest: array<vec4f, QUADS>;
// Factors of what was added before, and of what is added.
var<workgroup> factors: array<vec4f, QUADS>;
var<workgroup> added_factors: array<vec4f, QUADS>;
// Of the chunks so far.
var<workgroup> totals: array<vec4f, QUADS>;

// Keys of the round, from start to end, that the rows of a quad see: none for rows of other sequences.
fn keep_seen(rows: Rows, quad: u32, start: u32, end: u32) {
  let own = params.first + vec4u(
    row_of(rows, quad * 4u).token,
    row_of(rows, quad * 4u + 1u).token,
    row_of(rows, quad * 4u + 2u).token,
    row_of(rows, quad * 4u + 3u).token,
  );
  let begin = vec4u(first_key(own.x), first_key(own.y), first_key(own.z), first_key(own.w));
  seen_from[quad] = begin;
  seen_to[quad] = select(vec4u(), own + 1u, (own >= vec4u(start)) & (own < vec4u(end)));
}

fn hide(quad: u32, key: u32, scores: mat4x4f) -> mat4x4f {
  let lowest = vec4f(LOWEST);
  return mat4x4f(
    select(lowest, scores[0], is_seen(quad, key)),
    select(lowest, scores[1], is_seen(quad, key + QUADS)),
    select(lowest, scores[2], is_seen(quad, key + 2u * QUADS)),
    select(lowest, scores[3], is_seen(quad, key + 3u * QUADS)),
  );
}

fn weigh(quad: u32, key: u32, scores: mat4x4f) -> mat4x4f {
  let most = highest[quad];
  return mat4x4f(
    select(vec4f(), exp2(scores[0] - most), is_seen(quad, key)),
    select(vec4f(), exp2(scores[1] - most), is_seen(quad, key + QUADS)),
    select(vec4f(), exp2(scores[2] - most), is_seen(quad, key + 2u * QUADS)),
    select(vec4f(), exp2(scores[3] - most), is_seen(quad, key + 3u * QUADS)),
  );
}

fn greatest(columns: mat4x4f) -> vec4f {
  return max(max(columns[0], columns[1]), max(columns[2], columns[3]));
}

fn total_of(columns: mat4x4f) -> vec4f {
  return (columns[0] + columns[1]) + (columns[2] + columns[3]);
}

// Of what each x knows of a quad of rows.
fn put_known(start: u32, thread: Thread, low: vec4f, high: vec4f) {
  let at = start + thread.x * PITCH + thread.y;
  lines[at] = low;
  if (HALVES == 2u) { lines[at + HEIGHT] = high; }
}

fn scale_rows(sums: mat4x4f, by: vec4f) -> mat4x4f {
  return mat4x4f(sums[0] * by.x, sums[1] * by.y, sums[2] * by.z, sums[3] * by.w);
}

fn rescale(sums: ptr<function, Sums>, thread: Thread) {
  let low = factors[thread.y];
  (*sums).a = scale_rows((*sums).a, low);
  if (HALVES == 2u) {
    let high = factors[thread.y + HEIGHT];
    (*sums).b = scale_rows((*sums).b, high);
    if (OWN > 1u) {
      (*sums).c = scale_rows((*sums).c, low);
      (*sums).d = scale_rows((*sums).d, high);
    }
  } else {
    if (OWN > 1u) { (*sums).b = scale_rows((*sums).b, low); }
    if (OWN > 2u) { (*sums).c = scale_rows((*sums).c, low); }
    if (OWN > 3u) { (*sums).d = scale_rows((*sums).d, low); }
  }
}

// One past the last of the rows' tokens that belongs to the sequence of token `first`.
fn round_end(first: u32, last: u32) -> u32 {
  let start = sequence_start[first];
  if (sequence_start[last] == start) { return last + 1u; }
  var end = first + 1u;
  while (sequence_start[end] == start) { end++; }
  return end;
}

fn fetch(part: Part, queries_at: vec4u, keys_at: vec4u, d: u32) -> mat4x4f {
  let quad = min(d + part.quad, HEAD_QUADS - 1u);
  if (part.side == 0u) {
    let at = queries_at + quad;
    return mat4x4f(q[at.x], q[at.y], q[at.z], q[at.w]) * (params.scale * LOG2_E);
  }
  let at = keys_at + quad;
  return mat4x4f(k[at.x], k[at.y], k[at.z], k[at.w]);
}

fn attend(index: u32, thread: Thread) {
  let rows = rows_of(index);
  if (rows.first >= params.tokens * rows.sharing) { return; }
  let part = part_of(thread);
  let quads = hidden(HEAD_QUADS);
  let count = hidden(4u * HALVES * OWN);
  let sides = hidden(QUADS);
  let shared_at = rows.key_head * HEAD_QUADS;
  let last = params.first + rows.last / rows.sharing;
  let queries_at = four_queries(rows, part.place * 4u);
  for (var first = params.first + rows.first / rows.sharing; first <= last;) {
    let start = sequence_start[first];
    let end = round_end(first, last);
    if (thread.index < QUADS) {
      keep_seen(rows, thread.index, first, end);
      highest[thread.index] = vec4f(LOWEST);
    }
    // Of the chunk; the rows' results hold the sums of those before it.
    var sums = Sums();
    var total = vec4f();
    var all_total = vec4f();
    var all_highest = vec4f(LOWEST);
    var isFirst = true;
    // Tiles below the window of every token are left out.
    for (var key = start + (first_key(first) - start) / SIDE * SIDE; key < end; key += SIDE) {
      let own_keys = min(vec4u(key + part.place) + vec4u(0u, 16u, 32u, 48u), vec4u(end - 1u));
      var scores = Scores();
      for (var d = 0u; d < quads; d += DEPTH) {
        if (part.side < 2u) { put_lines(part, fetch(part, queries_at, four_keys(own_keys, shared_at), d)); }
        workgroupBarrier();
        add_products(&scores, thread, min(DEPTH, quads - d) * 4u);
        workgroupBarrier();
      }
      scores.low = hide(thread.y, key + thread.x, scores.low);
      if (HALVES == 2u) { scores.high = hide(thread.y + HEIGHT, key + thread.x, scores.high); }
      put_known(LEFT, thread, greatest(scores.low), greatest(scores.high));
      workgroupBarrier();
      if (thread.index < QUADS) {
        let before = highest[thread.index];
        var higher = before;
        for (var x = 0u; x < sides; x++) {
          higher = max(higher, lines[LEFT + x * PITCH + thread.index]);
        }
        highest[thread.index] = higher;
        factors[thread.index] = exp2(before - higher);
      }
      workgroupBarrier();
      scores.low = weigh(thread.y, key + thread.x, scores.low);
      if (HALVES == 2u) { scores.high = weigh(thread.y + HEIGHT, key + thread.x, scores.high); }
      put_known(RIGHT, thread, total_of(scores.low), total_of(scores.high));
      rescale(&sums, thread);
      workgroupBarrier();
      if (thread.index < QUADS) {
        var added = vec4f();
        for (var x = 0u; x < sides; x++) {
          added += lines[RIGHT + x * PITCH + thread.index];
        }
        total = fma(total, factors[thread.index], added);
      }
      let chunks = chunks_of(end - key);
      for (var chunk = 0u; chunk < chunks; chunk++) {
        let column = column_of(chunk);
        if (column % QUADS == 0u) { put_scores(LEFT, thread, &scores); }
        let columns = min(CHUNK, QUADS - column % QUADS);
        for (var i = thread.index; i < columns * HEAD_QUADS; i += THREADS) {
          let row = i / HEAD_QUADS;
          staged[i] = v[v_start(min(key + column + row, end - 1u), shared_at) + i - row * HEAD_QUADS];
        }
        workgroupBarrier();
        add_weighted(&sums, thread, LEFT + column % QUADS * PITCH, columns);
        workgroupBarrier();
      }
      let isLast = key + SIDE >= end;
      if (!isLast && (key + SIDE - start) % CHUNK_KEYS != 0u) { continue; }
      if (thread.index < QUADS) {
        let chunk_highest = highest[thread.index];
        let both = fold_of(all_highest, chunk_highest);
        all_total = fold(all_total, both.keep, total, both.add);
        all_highest = max(all_highest, chunk_highest);
        totals[thread.index] = all_total;
        factors[thread.index] = both.keep;
        added_factors[thread.index] = both.add;
        highest[thread.index] = select(vec4f(LOWEST), all_highest, isLast);
        total = vec4f();
      }
      workgroupBarrier();
      for (var i = 0u; i < count; i++) {
        let place = place_of(thread, i);
        let row = row_of(rows, place.row);
        let token = params.first + row.token;
        let isOwn = rows.first + place.row <= rows.last && token >= first && token < end;
        if (isOwn && place.quad < HEAD_QUADS) {
          let to = row.token * params.heads + row.head;
          let at = vec2u(place.row / 4u, place.row % 4u);
          var before = vec4f();
          if (!isFirst) { before = result[to * HEAD_QUADS + place.quad]; }
          let keep = vec4f(factors[at.x][at.y]);
          var value = fold(before, keep, sums.a[0], vec4f(added_factors[at.x][at.y]));
          if (isLast) {
            let sum = totals[at.x][at.y];
            value /= sum;
            if (place.quad == 0u) { statistics[to * 2u] = highest[at.x][at.y] / LOG2_E + log(sum); }
          }
          result[to * HEAD_QUADS + place.quad] = value;
        }
        sums = shifted(sums);
      }
      workgroupBarrier();
      isFirst = false;
    }
    first = end;
  }
}
