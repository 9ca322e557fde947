// Copies the first `length` positions of one slot to another, in both caches [slots, max_length, width].
// copies [n, 3] = from, to, length; no slot is both read and written. Grid: a thread per (copy, position, vec4).

//#include "parts/threads.wgsl"

struct Params { copies: u32, longest: u32, width: u32, max_length: u32 }

@group(0) @binding(0) var<storage, read> copies: array<u32>;
@group(0) @binding(1) var<storage, read_write> keys: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> values: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  let stretch = params.longest * quads;
  if (index >= params.copies * stretch) { return; }
  let i = index / stretch;
  let at = index - i * stretch;
  if (at >= copies[i * 3u + 2u] * quads) { return; }
  let slot = params.max_length * quads;
  let source = copies[i * 3u] * slot + at;
  let to = copies[i * 3u + 1u] * slot + at;
  keys[to] = keys[source];
  values[to] = values[source];
}
