// decode/rope_append.wgsl into a cache of bfloat16. q stays exact.

//#include "decode/parts/rope_append.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
