// attention_decode for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes one (row, head), 64 positions of the cache at a time: a thread scores one of them, weighs it, then adds
// up one element of every value. Sums run over 64 keys at a time in the order of attention/tiled.wgsl, and every fma that
// a compiler could choose is written out, so that the bits are the same. The 64 start at the sequence's first key, also
// where a window hides keys of the first of them.
// Grid: a workgroup per (row, head).

//#include "decode/parts/attention_decode_tiled.wgsl"
//#include "decode/parts/float32_cache.wgsl"
