// Entropy bonus: dentropy_t = -coef v_t and partial sums of v_t H_t over trained tokens.
//   v_t = weight, or column 0 of the row table.
// Grid: GROUPS workgroups whatever T is, so that sums are added in the same order on every device.

//#include "loss/parts/tokens.wgsl"

alias Sum = f32;

override ROW_WEIGHTED: bool = false;

struct Params { tokens: u32, partials_at: u32, weight: f32, coef: f32 }

@group(0) @binding(0) var<storage, read> entropy: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(4) var<storage, read_write> dentropy: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn term(t: u32) -> Sum {
  var weight = params.weight;
  if (ROW_WEIGHTED) { weight = workspace[row_of_token[t]]; }
  let trained = mask[t] != 0u;
  dentropy[t] = select(0.0, -params.coef * weight, trained);
  return select(0.0, weight * entropy[t], trained);
}

fn store(group: u32, sum: Sum) {
  workspace[params.partials_at + group] = sum;
}
