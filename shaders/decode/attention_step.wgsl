// A decoding step's attention, and what comes before it: q and k turned by their position, k and v kept in the cache.
// qkv [rows, (H + 2 KV) D]; angles [positions, D]: cos of D/2 pairs, then sin; keys, values [pages PAGE, KV D], of which this
// step adds the row's position positions[r] + shift; result [rows, H D]. Keys come one after another as in
// decode/attention_decode.wgsl, the row's own last: the bits are the same. D is a multiple of 8.
// Grid: a thread per (row, HEADS heads): one that shares a key head, or two that do.

//#include "decode/parts/attention_step.wgsl"
//#include "decode/parts/float32_cache.wgsl"
