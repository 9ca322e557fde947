// decode/cache_append.wgsl into a cache of bfloat16.

//#include "decode/parts/cache_append.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
