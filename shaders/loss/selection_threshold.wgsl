// Settles one byte of the smallest chosen key: walks the counters from the top until enough keys are above.
// When fewer keys exist than are wanted, the threshold falls to 1 and all are chosen. Clears the counters.
// Grid: one invocation.

struct Params { shift: u32, wanted: u32, threshold_at: u32 }

@group(0) @binding(0) var<storage, read_write> counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> workspace: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(1)
fn main() {
  if (params.shift == 24u) { counts[257] = params.wanted; }
  var wanted = counts[257];
  var byte = 0u;
  for (var k = 0u; k < 256u; k++) {
    let candidate = 255u - k;
    if (counts[candidate] >= wanted) {
      byte = candidate;
      break;
    }
    wanted -= counts[candidate];
  }
  for (var k = 0u; k < 256u; k++) { counts[k] = 0u; }
  counts[256] |= byte << params.shift;
  counts[257] = wanted;
  if (params.shift == 0u) { workspace[params.threshold_at] = bitcast<f32>(max(counts[256], 1u)); }
}
