// Which columns of B a block takes, and how their sums become C's. With OUTPUT = SWIGLU B's columns are [gate | up]: a block takes
// half of its own from each, and C has n / 2 columns.
// A kernel defines COLUMNS, an even number.

override OUTPUT: u32 = 0u;
const SWIGLU = 1u;

// The column of B that is the block's `local` one; params.n where there is none.
fn column_of_b(block: u32, local: u32) -> u32 {
  if (OUTPUT == SWIGLU) {
    let column = block * (COLUMNS / 2u) + local % (COLUMNS / 2u);
    return select(params.n, column + local / (COLUMNS / 2u) * (params.n / 2u), column < params.n / 2u);
  }
  return min(block * COLUMNS + local, params.n);
}

// By the expression of layer/swiglu, whose bits it has.
fn swiglu(gate: f32, up: f32) -> f32 {
  return gate / (1.0 + exp(-gate)) * up;
}
