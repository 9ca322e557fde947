// Turns logits into their gradient in place, from a = logprob_grads and b = entropy_grads of the row:
//   (a (1[i = y] - p_i) - b p_i (log p_i + entropy)) / temperature,  log p_i = logits_i / temperature - lse
// Columns from V to the stride become 0. Rows as in logprob.
// Grid: a workgroup per (row, 16 WORKGROUP vec4s), lanes side by side.
//#include "parts/groups.wgsl"

struct Params {
  rows: u32,
  first_row: u32,
  vocabulary: u32,
  stride: u32,
  inverse_temperature: f32,
}

@group(0) @binding(0) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> log_sum_exps: array<f32>;
@group(0) @binding(3) var<storage, read> entropies: array<f32>;
@group(0) @binding(4) var<storage, read> logprob_grads: array<f32>;
@group(0) @binding(5) var<storage, read> entropy_grads: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

override WORKGROUP: u32 = 8u;
// Vec4s a thread takes.
const DEPTH = 16u;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let flat = group_index(group);
  let quads = params.stride / 4u;
  let pieces = (quads + WORKGROUP * DEPTH - 1u) / (WORKGROUP * DEPTH);
  let local_row = flat / pieces;
  if (local_row >= params.rows) {
    return;
  }
  let row = params.first_row + local_row;
  let target_id = targets[row];
  let lse = log_sum_exps[row];
  let entropy = entropies[row];
  let a = logprob_grads[row];
  let b = entropy_grads[row];
  let first = (flat - local_row * pieces) * WORKGROUP * DEPTH + lane;
  let end = min(first - lane + WORKGROUP * DEPTH, quads);
  for (var quad = first; quad < end; quad += WORKGROUP) {
    let ids = vec4u(quad * 4u) + vec4u(0u, 1u, 2u, 3u);
    let at = local_row * quads + quad;
    let log_p = logits[at] * params.inverse_temperature - lse;
    let chosen = select(vec4f(), vec4f(a), ids == vec4u(target_id));
    let grad = params.inverse_temperature * (chosen - exp(log_p) * (a + b * (log_p + entropy)));
    logits[at] = select(vec4f(), grad, ids < vec4u(params.vocabulary));
  }
}
