// attention_decode for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes the query heads of a row that share a key head (at most 8, so that a key or value is read once for them) and 256
// positions of the cache at a time: a thread scores one of them for all heads, weighs it, then adds up one element of the
// values for some. Sums run over 64 keys at a time and are folded every 256 in the order of attention/tiled.wgsl, and every
// fma that a compiler could choose is written out, so that the bits are the same. Both are counted from the sequence's first key, also
// where a window hides keys of the first of them.
// Grid: a workgroup per (row, query heads that share a key head, at most 8).

//#include "decode/parts/attention_decode_tiled.wgsl"
//#include "decode/parts/float32_cache.wgsl"
