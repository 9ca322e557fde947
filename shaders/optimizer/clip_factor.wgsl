// clip = [norm, min(1, max_norm / (norm + 1e-6)), 0] from partial sums of squares; factor 1 where max_norm <= 0.
// clip = [norm, 0, 1] where the norm is not finite, by its bits: comparisons with NaN cannot be relied on.
// Grid: one workgroup. The factor is torch.nn.utils.clip_grad_norm_'s.

//#include "parts/halves.wgsl"

const THREADS = 64u;
const EXPONENT = 0x7f800000u;

struct Params { count: u32, max_norm: f32 }

@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read_write> clip: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> sums: array<f32, THREADS>;
var<workgroup> broken: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) lane: u32) {
  var sum = 0.0;
  var bad = 0u;
  for (var i = lane; i < params.count; i += THREADS) {
    let partial = partials[i];
    bad |= select(0u, 1u, (bitcast<u32>(partial) & EXPONENT) == EXPONENT);
    sum += partial;
  }
  sums[lane] = sum;
  broken[lane] = bad;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      sums[lane] += sums[lane + half];
      broken[lane] |= broken[lane + half];
    }
  }
  if (lane == 0u) {
    let overflown = (bitcast<u32>(sums[0]) & EXPONENT) == EXPONENT;
    let norm = sqrt(sums[0]);
    if (overflown || broken[0] != 0u) {
      clip[0] = vec4f(norm, 0.0, 1.0, 0.0);
    } else {
      clip[0] = vec4f(norm, select(1.0, min(1.0, params.max_norm / (norm + 1e-6)), params.max_norm > 0.0), 0.0, 0.0);
    }
  }
}
