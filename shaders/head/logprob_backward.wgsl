// Turns logits into their gradient in place, from a = logprob_grads and b = entropy_grads of the row:
//   (a (1[i = y] - p_i) - b p_i (log p_i + entropy)) / temperature,  log p_i = logits_i / temperature - lse
// Columns from V to the stride become 0. Rows as in logprob.
// Grid: a workgroup per (row, 16 WORKGROUP vec4s), lanes side by side.

//#include "head/parts/logits.wgsl"
//#include "head/parts/stretches.wgsl"

@group(0) @binding(0) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> log_sum_exps: array<f32>;
@group(0) @binding(3) var<storage, read> entropies: array<f32>;
@group(0) @binding(4) var<storage, read> logprob_grads: array<f32>;
@group(0) @binding(5) var<storage, read> entropy_grads: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let quads = params.stride / 4u;
  let stretch = stretch_of(group_index(group), lane, quads);
  if (stretch.row >= params.rows) { return; }
  let row = params.first_row + stretch.row;
  let target_id = targets[row];
  let lse = log_sum_exps[row];
  let entropy = entropies[row];
  let a = logprob_grads[row];
  let b = entropy_grads[row];
  for (var quad = stretch.first; quad < stretch.end; quad += WORKGROUP) {
    let at = stretch.row * quads + quad;
    let log_p = logits[at] * params.inverse_temperature - lse;
    let chosen = select(vec4f(), vec4f(a), columns_of(quad) == vec4u(target_id));
    let grad = params.inverse_temperature * (chosen - exp(log_p) * (a + b * (log_p + entropy)));
    logits[at] = select(vec4f(), grad, used(quad));
  }
}
