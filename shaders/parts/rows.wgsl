// A grid of one thread per row, params.rows of them. A kernel defines compute_row(row).
//#include "parts/threads.wgsl"

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  let row = thread_index(thread);
  if (row < params.rows) { compute_row(row); }
}
