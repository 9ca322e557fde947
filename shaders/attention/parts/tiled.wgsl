// Tiles of vec4s in workgroup memory: ROWS rows that stay, and LANES that pass through. A thread is a
// (row, lane), its row that of a token of the block. A kernel defines attend(block, token, row, lane).

//#include "parts/groups.wgsl"

// A row of a tile; one vec4 more than it holds, so that rows start in different banks.
override PITCH: u32 = HEAD_QUADS + 1u;

// 16, or fewer where wide heads leave no room in workgroup memory.
override ROWS: u32 = 16u;
const LANES = 8u;
override THREADS: u32 = ROWS * LANES;
// Vec4s of a row that a thread owns; heads of 256 have most.
override OWN: u32 = (HEAD_QUADS + LANES - 1u) / LANES;
const MAX_OWN = 8u;

// A loop bound that a compiler cannot see through: software drivers take half a minute over these loops unrolled.
fn hidden(bound: u32) -> u32 {
  return params.heads * bound / params.heads;
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) thread: u32) {
  let block = block_of(group_index(group), grid_heads(), ROWS);
  let row = thread / LANES;
  if (block.first < params.tokens) { attend(block, min(block.first + row, block.last), row, thread % LANES); }
}
