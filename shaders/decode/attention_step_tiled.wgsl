// decode/attention_step for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes some heads of a row as in decode/attention_decode_tiled.wgsl, whose bits it has. It turns its queries and the row's
// own key; of the workgroups of a key head the first keeps key and value in the cache. D is a multiple of 8.
// Grid: a workgroup per (row, query heads that share a key head, at most 8).

//#include "decode/parts/attention_step_tiled.wgsl"
//#include "decode/parts/all_chunks.wgsl"
//#include "decode/parts/float32_cache.wgsl"
