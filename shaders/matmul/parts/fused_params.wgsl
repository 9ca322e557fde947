// Parameters of a product that takes over kernels around it: those of C = A B (+ addend), and an adapter's.

struct Params {
  m: u32,
  n: u32,
  k: u32,
  a_offset: u32,
  a_row: u32,
  a_k: u32,
  b_offset: u32,
  b_k: u32,
  b_column: u32,
  c_offset: u32,
  c_row: u32,
  alpha: f32,
  addend_offset: u32,
  // From a row of the addend to the next; 0 adds one row, a bias, to all.
  addend_row: u32,
  // 0: C = product. 1: C += product. 2: C = addend + product. 3, 4: as 0 and 2, with sums that start at what C holds.
  mode: u32,
  // Of the adapter: its rank, from a row of `low` to the next, its scale, and the columns of C at which its second and third
  // matrix begin.
  rank: u32,
  low_row: u32,
  scale: f32,
  second: u32,
  third: u32,
}

@group(1) @binding(0) var<uniform> params: Params;
