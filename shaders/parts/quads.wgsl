// A grid of one thread per four elements of each row: params.rows rows of params.width. A kernel defines compute_quad(at).
//#include "parts/threads.wgsl"

struct Quad {
  row: u32,
  // In the row, which has `quads` of them.
  column: u32,
  quads: u32,
  // In all rows.
  index: u32,
}

fn compute_thread(index: u32) {
  let quads = params.width / 4u;
  let row = index / quads;
  if (row < params.rows) { compute_quad(Quad(row, index - row * quads, quads, index)); }
}
