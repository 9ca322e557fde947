// Attention of HEADS query heads that share a key head, over keys in the cache, one after another.
// A kernel defines MAX_QUADS (vec4s of its heads at most; loops unroll, and what they do not touch is dropped), binds keys
// and values, and defines attend_row(row, head) for HEADS heads from `head` on. Grid: a thread per (row, HEADS heads).
//#include "parts/threads.wgsl"

//#include "attention/parts/softmax.wgsl"

override HEAD_QUADS: u32 = 2u;
override HEADS: u32 = 1u;

alias Heads = array<vec4f, MAX_QUADS>;

// A loop bound that a compiler cannot see through: software drivers take many seconds to compile unrolled loads and stores.
// What such a loop reads into registers or writes from them moves through push() instead of an index.
fn hidden(bound: u32) -> u32 {
  return params.heads * bound / params.heads;
}

// Moves the `count` vec4s from `first` on down by one and puts `last` at their end.
fn push(heads: ptr<function, Heads>, first: u32, count: u32, last: vec4f) {
  for (var d = 1u; d < count; d++) {
    (*heads)[first + d - 1u] = (*heads)[first + d];
  }
  (*heads)[first + count - 1u] = last;
}

fn compute_thread(index: u32) {
  let bundles = params.heads / HEADS;
  let row = index / bundles;
  if (row < params.rows) { attend_row(row, (index - row * bundles) * HEADS); }
}

struct Weights {
  // Of the sum so far.
  keep: vec2f,
  // Of the next key.
  next: vec2f,
}

// Of exp2(highest - higher) and exp2(score - higher), one is 1.
fn weigh(score: vec2f, highest: vec2f) -> Weights {
  let falls = exp2(-abs(score - highest));
  let rises = score > highest;
  return Weights(select(vec2f(1.0), falls, rises), select(falls, vec2f(1.0), rises));
}

// A row's keys of one head: the row of the page table, and where the head lies in a token, in vec4s.
struct Cached { index: u32, head_at: u32 }

struct Attended { sum: Heads, highest: vec2f, total: vec2f }

// Adds the keys and values at the row's positions [first, end).
fn attend(attended: ptr<function, Attended>, query: ptr<function, Heads>, row: Cached, first: u32, end: u32) {
  let stride = params.key_heads * HEAD_QUADS;
  for (var position = first; position < end;) {
    let page_end = min(position - position % PAGE + PAGE, end);
    var at = place(row.index, position) * stride + row.head_at;
    for (; position < page_end; position++) {
      var score = vec2f();
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let key = kept_quad(keys[at + d]);
        for (var h = 0u; h < HEADS; h++) {
          score[h] += dot((*query)[h * HEAD_QUADS + d], key);
        }
      }
      let weights = weigh(score, (*attended).highest);
      (*attended).highest = max((*attended).highest, score);
      (*attended).total = (*attended).total * weights.keep + weights.next;
      for (var d = 0u; d < HEAD_QUADS; d++) {
        let value = kept_quad(values[at + d]);
        for (var h = 0u; h < HEADS; h++) {
          let i = h * HEAD_QUADS + d;
          (*attended).sum[i] = (*attended).sum[i] * weights.keep[h] + weights.next[h] * value;
        }
      }
      at += stride;
    }
  }
}
