// Per row of logits: 1 where greedy decoding would draw the target, which is the first of the largest logits, else 0.
// logits [rows, stride], V used; targets and results start at first_row. Grid: a thread per row.

//#include "head/parts/greedy.wgsl"
//#include "parts/rows.wgsl"

fn compute_row(index: u32) {
  let start = index * params.stride / 4u;
  let row = params.first_row + index;
  let chosen = targets[row];
  let own = logits[start + chosen / 4u][chosen % 4u];
  var is_beaten = false;
  for (var quad = 0u; quad * 4u < params.vocabulary; quad++) {
    is_beaten = is_beaten || beats(quad, logits[start + quad], chosen, own);
  }
  greedy[row] = select(1.0, 0.0, is_beaten);
}
