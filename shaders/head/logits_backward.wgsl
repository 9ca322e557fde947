// Turns one piece of the logits into its gradient in place, from a = dlogprobs and b = dentropy of the row:
//   (a (1[j = target] - p_j) - b p_j (log p_j + entropy)) / temperature,  log p_j = logits_j / temperature - lse
// Pieces, rows and strides as in head/logits_forward.wgsl; columns beyond the piece become 0.
// Grid: a workgroup per (row, 16 WORKGROUP vec4s), lanes side by side.

//#include "head/parts/pieces.wgsl"
//#include "head/parts/stretches.wgsl"

override ENTROPY: bool = true;

@group(0) @binding(0) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> log_sum_exps: array<f32>;
@group(0) @binding(3) var<storage, read> entropies: array<f32>;
@group(0) @binding(4) var<storage, read> dlogprobs: array<f32>;
@group(0) @binding(5) var<storage, read> dentropy: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let quads = params.stride / 4u;
  let stretch = stretch_of(group_index(group), lane, quads);
  if (stretch.row >= params.rows) { return; }
  let row = params.first_row + stretch.row;
  let target_column = targets[row] - params.column_offset;
  let lse = log_sum_exps[row];
  let a = dlogprobs[row];
  var b = 0.0;
  if (ENTROPY) { b = dentropy[row]; }
  let entropy = entropies[row];
  for (var quad = stretch.first; quad < stretch.end; quad += WORKGROUP) {
    let columns = columns_of(quad);
    let at = stretch.row * quads + quad;
    let log_p = logits[at] * params.inverse_temperature - lse;
    let chosen = select(vec4(0.0), vec4(a), columns == vec4(target_column));
    let gradient = params.inverse_temperature * (chosen - exp(log_p) * (a + b * (log_p + entropy)));
    logits[at] = select(vec4(0.0), gradient, columns < vec4(params.columns));
  }
}
