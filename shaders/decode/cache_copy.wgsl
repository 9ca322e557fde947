// Copies whole pages to others, in both caches [pages, page_quads vec4s], whatever numbers they hold.
// copies [n, 2] = from, to; no page is both read and written. Grid: a thread per (copy, vec4).

//#include "parts/threads.wgsl"

struct Params { copies: u32, page_quads: u32 }

@group(0) @binding(0) var<storage, read> copies: array<u32>;
@group(0) @binding(1) var<storage, read_write> keys: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> values: array<vec4u>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let i = index / params.page_quads;
  if (i >= params.copies) { return; }
  let at = index - i * params.page_quads;
  let source = copies[i * 2u] * params.page_quads + at;
  let to = copies[i * 2u + 1u] * params.page_quads + at;
  keys[to] = keys[source];
  values[to] = values[source];
}
