// A workgroup's 64 rows: queries of all heads that share a key head, token by token, so that they share its keys and values.
// A kernel's Params hold tokens, heads and key_heads.

// Rows first to last of a key head, and the query heads that share it.
struct Rows { key_head: u32, sharing: u32, first: u32, last: u32 }

struct Row { token: u32, head: u32 }

// Of a workgroup beyond the work, first is greater than last.
fn rows_of(index: u32) -> Rows {
  let sharing = params.heads / params.key_heads;
  let block = index / params.key_heads;
  let first = block * SIDE;
  return Rows(index - block * params.key_heads, sharing, first, min(first + SIDE, params.tokens * sharing) - 1u);
}

// Row `i` of the tile; the last one behind the end.
fn row_of(rows: Rows, i: u32) -> Row {
  let row = min(rows.first + i, rows.last);
  let token = row / rows.sharing;
  return Row(token, rows.key_head * rows.sharing + row - token * rows.sharing);
}

// Where the queries of rows i to i + 3 start.
fn four_queries(rows: Rows, i: u32) -> vec4u {
  return vec4u(query_start(rows, i), query_start(rows, i + 1u), query_start(rows, i + 2u), query_start(rows, i + 3u));
}

fn query_start(rows: Rows, i: u32) -> u32 {
  let row = row_of(rows, i);
  return q_start(row.token, row.head * HEAD_QUADS);
}

// Where their outputs start.
fn four_outs(rows: Rows, i: u32) -> vec4u {
  return vec4u(out_start(rows, i), out_start(rows, i + 1u), out_start(rows, i + 2u), out_start(rows, i + 3u));
}

fn out_start(rows: Rows, i: u32) -> u32 {
  let row = row_of(rows, i);
  return (row.token * params.heads + row.head) * HEAD_QUADS;
}

// Of each row the first key it sees, and the one behind the last.
var<workgroup> seen_from: array<vec4u, QUADS>;
var<workgroup> seen_to: array<vec4u, QUADS>;

fn is_seen(quad: u32, key: u32) -> vec4<bool> {
  return (vec4u(key) >= seen_from[quad]) & (vec4u(key) < seen_to[quad]);
}
