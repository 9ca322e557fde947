// A grid of one thread per row, params.rows of them. A kernel defines compute_row(row).
//#include "parts/threads.wgsl"

fn compute_thread(row: u32) {
  if (row < params.rows) { compute_row(row); }
}
