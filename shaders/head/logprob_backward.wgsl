// The gradient of logits in place, rows as in head/logprob.wgsl; columns from V to the stride become 0.

//#include "head/parts/logits.wgsl"
//#include "head/parts/backward.wgsl"

fn target_column(row: u32) -> u32 {
  return targets[row];
}
