// A workgroup per (row, DEPTH vec4s a thread), lanes side by side.
//#include "parts/groups.wgsl"

override WORKGROUP: u32 = 8u;
// Vec4s a thread takes.
const DEPTH = 16u;

struct Stretch {
  row: u32,
  // Vec4s of the row: the next after `first` is WORKGROUP on.
  first: u32,
  end: u32,
}

fn stretch_of(index: u32, lane: u32, quads: u32) -> Stretch {
  let stretches = (quads + WORKGROUP * DEPTH - 1u) / (WORKGROUP * DEPTH);
  let row = index / stretches;
  let first = (index - row * stretches) * WORKGROUP * DEPTH;
  return Stretch(row, first + lane, min(first + WORKGROUP * DEPTH, quads));
}
