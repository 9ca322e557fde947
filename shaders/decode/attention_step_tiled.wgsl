// decode/attention_step for GPUs and for wide heads: the same bindings, params and results.
//
// A workgroup takes one (row, head) as in decode/attention_decode_tiled.wgsl, whose bits it has. It turns its query and the row's
// own key; of the heads that share a key head the first keeps key and value in the cache. D is a multiple of 8.
// Grid: a workgroup per (row, head).

//#include "decode/parts/attention_step_tiled.wgsl"
//#include "decode/parts/float32_cache.wgsl"
