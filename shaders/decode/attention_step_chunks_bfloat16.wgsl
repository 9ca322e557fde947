// decode/attention_step_chunks.wgsl over a cache of bfloat16.

//#include "decode/parts/attention_step_tiled.wgsl"
//#include "decode/parts/one_chunk.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
