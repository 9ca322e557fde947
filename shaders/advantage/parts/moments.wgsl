// What the two passes of whitening share: a division of vec4s over threads, and partial sums.
//#include "parts/spans.wgsl"

const THREADS = 64u;
const GROUPS = 64u;
const LANES = 16u;
