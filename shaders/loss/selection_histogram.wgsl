// Counts keys by one byte, among those whose higher bytes equal what the passes before have settled.
// counts: 256 counters, then {settled bytes, keys still wanted}. Integer sums: the order does not matter.
// Grid: 64 workgroups of 256, striding.

//#include "parts/spans.wgsl"

const THREADS = 256u;
const GROUPS = 64u;
const LANES = 32u;

struct Params { tokens: u32, shift: u32 }

@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<atomic<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let settled = atomicLoad(&counts[256]);
  // A shift by 32 is not defined, so the bytes above are compared in two steps.
  let span = span_of(group.x * THREADS + thread, params.tokens);
  for (var t = span.first; t < span.end; t += LANES) {
    let key = keys[t];
    let above = (key >> params.shift) >> 8u;
    if (key != 0u && above == (settled >> params.shift) >> 8u) {
      atomicAdd(&counts[(key >> params.shift) & 255u], 1u);
    }
  }
}
