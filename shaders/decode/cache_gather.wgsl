// k[r, :] = keys[places[r], :]; likewise v. k, v [rows, width]; caches [pages PAGE, width]; a place counts tokens of the whole cache.
// Grid: a thread per vec4 of a row.

//#include "decode/parts/cache_gather.wgsl"
//#include "decode/parts/float32_cache.wgsl"
