// next[r] = previous[sources[r]] for r < rows. Grid: a thread per row.

//#include "parts/threads.wgsl"

struct Params { rows: u32 }

@group(0) @binding(0) var<storage, read> sources: array<u32>;
@group(0) @binding(1) var<storage, read> previous: array<u32>;
@group(0) @binding(2) var<storage, read_write> next: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  if (index >= params.rows) { return; }
  next[index] = previous[sources[index]];
}
