// A thread per token of a block, its head in registers.

//#include "parts/groups.wgsl"

override WORKGROUP: u32 = 8u;

// The widest head is 128. Loops to HEAD_QUADS unroll: their arrays stay in registers, and what they do not touch is dropped.
const MAX_QUADS = 32u;
