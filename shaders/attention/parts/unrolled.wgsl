// A thread per token of a block, its head in registers. A kernel defines attend(block, token, lane).

//#include "parts/groups.wgsl"

override WORKGROUP: u32 = 8u;

// The widest head is 256. Loops to HEAD_QUADS unroll: their arrays stay in registers, and what they do not touch is dropped.
const MAX_QUADS = 64u;

@compute @workgroup_size(WORKGROUP)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let block = block_of(group_index(group), grid_heads(), WORKGROUP);
  if (block.first < params.tokens) { attend(block, min(block.first + lane, block.last), lane); }
}
