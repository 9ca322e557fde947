// Tokens of a batch, divided over threads.
//#include "parts/spans.wgsl"

const THREADS = 256u;
const GROUPS = 64u;
const LANES = 32u;
