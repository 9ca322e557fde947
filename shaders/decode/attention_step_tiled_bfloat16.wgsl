// decode/attention_step_tiled.wgsl over a cache of bfloat16.

//#include "decode/parts/attention_step_tiled.wgsl"
//#include "decode/parts/all_chunks.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
