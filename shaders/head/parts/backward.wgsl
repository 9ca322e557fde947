// Turns logits into their gradient in place, from a and b, the gradients of the row's log-probability and entropy:
//   (a (1[j = target] - p_j) - b p_j (log p_j + entropy)) / temperature,  log p_j = logits_j / temperature - lse
// Columns that are not used become 0. Grid: a workgroup per (row, DEPTH vec4s a thread), lanes side by side.
// A kernel defines its Params, used(quad), and target_column(row), the target's column among the row's logits.
//#include "parts/groups.wgsl"

override WORKGROUP: u32 = 8u;
// False where b is 0 in every row: it is not read.
override ENTROPY: bool = true;

// Vec4s a thread takes.
const DEPTH = 16u;

@group(0) @binding(0) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> log_sum_exps: array<f32>;
@group(0) @binding(3) var<storage, read> entropies: array<f32>;
@group(0) @binding(4) var<storage, read> dlogprobs: array<f32>;
@group(0) @binding(5) var<storage, read> dentropy: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let quads = params.stride / 4u;
  let stretches = (quads + WORKGROUP * DEPTH - 1u) / (WORKGROUP * DEPTH);
  let index = group_index(group) / stretches;
  if (index >= params.rows) { return; }
  let row = params.first_row + index;
  let chosen_column = target_column(row);
  let lse = log_sum_exps[row];
  let entropy = entropies[row];
  let a = dlogprobs[row];
  var b = 0.0;
  if (ENTROPY) { b = dentropy[row]; }
  let first = (group_index(group) - index * stretches) * WORKGROUP * DEPTH;
  let end = min(first + WORKGROUP * DEPTH, quads);
  for (var quad = first + lane; quad < end; quad += WORKGROUP) {
    let at = index * quads + quad;
    let log_p = logits[at] * params.inverse_temperature - lse;
    let chosen = select(vec4f(), vec4f(a), columns_of(quad) == vec4u(chosen_column));
    let gradient = params.inverse_temperature * (chosen - exp(log_p) * (a + b * (log_p + entropy)));
    logits[at] = select(vec4f(), gradient, used(quad));
  }
}
