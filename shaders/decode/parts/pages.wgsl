// Where the cache keeps the positions of a row: in pages of PAGE tokens, which the row's line of the page table names in
// order. A kernel binds the table, [rows, row_pages], as `pages`; its Params hold row_pages.

//#include "decode/parts/page_size.wgsl"

// In tokens of the whole cache.
fn place(row: u32, position: u32) -> u32 {
  return pages[row * params.row_pages + position / PAGE] * PAGE + position % PAGE;
}
