// decode/cache_gather.wgsl from a cache of bfloat16.

//#include "decode/parts/cache_gather.wgsl"
//#include "decode/parts/bfloat16_cache.wgsl"
