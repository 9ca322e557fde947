// A grid of threads over the vec4s (or vec2s) of rows: `width` of them a row.
//#include "parts/threads.wgsl"

struct Element {
  index: u32,
  row: u32,
  // In the row.
  column: u32,
}

fn element_of(thread: Thread, width: u32) -> Element {
  let index = thread_index(thread);
  let row = index / width;
  return Element(index, row, index - row * width);
}
