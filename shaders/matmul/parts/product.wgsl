// Parameters, buffers and results of C = alpha A B (+ addend).
// A kernel defines how it reads them: alias A = f32 or vec4f, B likewise, C and the addend likewise, with C_WIDTH elements each.

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
}

@group(0) @binding(0) var<storage, read> a: array<A>;
@group(0) @binding(1) var<storage, read> b: array<B>;
@group(0) @binding(2) var<storage, read> addend: array<C>;
@group(0) @binding(3) var<storage, read_write> c: array<C>;
@group(1) @binding(0) var<uniform> params: Params;

// True where the sums start at what C holds.
fn continues() -> bool {
  return params.mode >= 3u;
}

// A loop bound that a compiler cannot see through: Mesa's CPU driver takes seconds to compile loads and stores unrolled.
fn hidden(bound: u32) -> u32 {
  return params.m * bound / params.m;
}

// Writes one result, where `sum` is that of the products along k. `column` counts elements of the type C.
fn store(row: u32, column: u32, sum: C) {
  let at = (params.c_offset + row * params.c_row) / C_WIDTH + column;
  var value = params.alpha * sum;
  if (params.mode == 1u) {
    value += c[at];
  } else if (params.mode == 2u || params.mode == 4u) {
    value += addend[(params.addend_offset + row * params.addend_row) / C_WIDTH + column];
  }
  c[at] = value;
}
