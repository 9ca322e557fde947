// Clipped value loss: L = max((v - R)^2, (clip(v, old - c, old + c) - R)^2) / 2, dvalues_t = w_t dL/dv, 0 where mask = 0.
// partials: sums of w_t L, of tokens where the clipped term is larger, and of v.
//   w_t = weight, or the row's entry in `row_weights`
// Grid: GROUPS workgroups whatever T is.

//#include "loss/parts/tokens.wgsl"
//#include "loss/parts/weights.wgsl"

alias Sum = vec3f;

struct Params { tokens: u32, weight: f32, clip: f32 }

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> old_values: array<f32>;
@group(0) @binding(2) var<storage, read> returns: array<f32>;
@group(0) @binding(3) var<storage, read> mask: array<u32>;
@group(0) @binding(4) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(5) var<storage, read> row_weights: array<f32>;
@group(0) @binding(6) var<storage, read_write> dvalues: array<f32>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn term(t: u32) -> Sum {
  let weight = weight_of(t);
  let trained = mask[t] != 0u;
  let v = values[t];
  let low = old_values[t] - params.clip;
  let high = old_values[t] + params.clip;
  let plain = v - returns[t];
  let clipped = clamp(v, low, high) - returns[t];
  let larger = clipped * clipped > plain * plain;
  let loss = 0.5 * max(plain * plain, clipped * clipped);
  let flows = trained && (!larger || (v >= low && v <= high));
  dvalues[t] = select(0.0, weight * plain, flows);
  return select(vec3(0.0), vec3(weight * loss, select(0.0, 1.0, larger), v), trained);
}

fn store(group: u32, sum: Sum) {
  for (var k = 0u; k < 3u; k++) { partials[3u * group + k] = sum[k]; }
}
