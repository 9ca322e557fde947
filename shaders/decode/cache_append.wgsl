// keys[places[r], :] = k of row r; likewise values. Caches [pages PAGE, width]; a place counts tokens of the whole cache.
// Grid: a thread per vec4 of a row.

//#include "decode/parts/cache_append.wgsl"
//#include "decode/parts/float32_cache.wgsl"
