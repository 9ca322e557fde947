// decode/attention_decode.wgsl over a cache of bfloat16.

//#include "decode/parts/attention_decode.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
