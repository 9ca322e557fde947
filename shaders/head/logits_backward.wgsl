// Turns one piece of the logits into its gradient in place, from a = dlogprobs and b = dentropy of the row:
//   (a (1[j = target] - p_j) - b p_j (log p_j + entropy)) / temperature,  log p_j = logits_j / temperature - lse
// Pieces, rows and strides as in head/logits_forward.wgsl; columns beyond the piece become 0.
// Grid: a workgroup per (row, 16 WORKGROUP vec4s), lanes side by side.
//#include "parts/groups.wgsl"

override WORKGROUP: u32 = 8u;
override ENTROPY: bool = true;

const DEPTH = 16u;

struct Params {
  rows: u32,
  first_row: u32,
  columns: u32,
  column_offset: u32,
  stride: u32,
  inverse_temperature: f32,
}

@group(0) @binding(0) var<storage, read_write> logits: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> log_sum_exps: array<f32>;
@group(0) @binding(3) var<storage, read> entropies: array<f32>;
@group(0) @binding(4) var<storage, read> dlogprobs: array<f32>;
@group(0) @binding(5) var<storage, read> dentropy: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let flat = group_index(group);
  let quads = params.stride / 4u;
  let pieces = (quads + WORKGROUP * DEPTH - 1u) / (WORKGROUP * DEPTH);
  let index = flat / pieces;
  if (index >= params.rows) { return; }
  let row = params.first_row + index;
  let target_column = targets[row] - params.column_offset;
  let lse = log_sum_exps[row];
  let a = dlogprobs[row];
  var b = 0.0;
  if (ENTROPY) { b = dentropy[row]; }
  let entropy = entropies[row];
  let first = (flat - index * pieces) * WORKGROUP * DEPTH;
  let end = min(first + WORKGROUP * DEPTH, quads);
  for (var quad = first + lane; quad < end; quad += WORKGROUP) {
    let columns = vec4(quad * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = index * quads + quad;
    let log_p = logits[at] * params.inverse_temperature - lse;
    let chosen = select(vec4(0.0), vec4(a), columns == vec4(target_column));
    let gradient = params.inverse_temperature * (chosen - exp(log_p) * (a + b * (log_p + entropy)));
    logits[at] = select(vec4(0.0), gradient, columns < vec4(params.columns));
  }
}
