// decode/attention_step_tiled.wgsl with a workgroup per chunk of the context, for few rows with long ones: decode/attention_merge.wgsl
// folds what it leaves, with the same bits. A row's chunks outside its window, or behind its position, are not written.
// Grid: a workgroup per (row, query heads that share a key head, at most 8, chunk of 256 keys).

//#include "decode/parts/attention_step_tiled.wgsl"
//#include "decode/parts/one_chunk.wgsl"
//#include "decode/parts/float32_cache.wgsl"
