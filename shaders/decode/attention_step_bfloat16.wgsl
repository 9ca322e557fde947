// decode/attention_step.wgsl over a cache of bfloat16. The row's own key and value count as the cache keeps them.

//#include "decode/parts/attention_step.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
