// Per row of logits: 1 where greedy decoding would draw the target, which is the first of the largest logits, else 0.
// logits [rows, stride], V used; targets and results start at first_row. Grid: a thread per row.

//#include "head/parts/logits.wgsl"
//#include "parts/rows.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> greedy: array<f32>;

fn compute_row(index: u32) {
  let start = index * params.stride / 4u;
  let row = params.first_row + index;
  let chosen = targets[row];
  let own = vec4f(logits[start + chosen / 4u][chosen % 4u]);
  var is_beaten = false;
  for (var quad = 0u; quad * 4u < params.vocabulary; quad++) {
    let x = logits[start + quad];
    let is_before = columns_of(quad) < vec4u(chosen);
    is_beaten = is_beaten || any(used(quad) & ((x > own) | ((x == own) & is_before)));
  }
  greedy[row] = select(1.0, 0.0, is_beaten);
}
