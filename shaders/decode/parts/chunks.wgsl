// A kernel includes what defines CHUNK_KEYS; its Params hold row_pages.

//#include "decode/parts/page_size.wgsl"

// Chunks that the pages of a row have room for.
fn row_chunks() -> u32 {
  return (params.row_pages * PAGE + CHUNK_KEYS - 1u) / CHUNK_KEYS;
}
