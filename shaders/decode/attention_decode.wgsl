// Attention of one new query per row to its keys in the cache, the last `window` ones up to position
// positions[r] + shift. Keys come one after another, each as in attention/plain.wgsl and attention/subgroup.wgsl: the bits are the same.
// keys, values [pages PAGE, key_heads D]; q at a stride and an offset per row; result [rows, heads D].
// Grid: a thread per (row, HEADS heads): one that shares a key head, or two that share their loads of it.

//#include "decode/parts/attention_decode.wgsl"
//#include "decode/parts/float32_cache.wgsl"
