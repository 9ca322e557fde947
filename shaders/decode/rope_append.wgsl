// One decoding step's q turned by its position in place, k turned into the cache, v copied into it.
//
// qkv [rows, (H + 2 KV) D]; angles [positions, D]: cos of D/2 pairs, then sin; keys, values [pages PAGE, KV D]; D is a
// multiple of 4. Nothing is turned where `rotates` is 0.
// A thread owns pairs (d, d + D/2) and (d + 1, d + 1 + D/2) of one head of one row. Grid: rows * (H + 2 KV) * D / 4 threads.

//#include "decode/parts/rope_append.wgsl"
//#include "decode/parts/float32_cache.wgsl"
