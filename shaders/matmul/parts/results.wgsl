// Buffers and results of C = alpha A B (+ addend), for a kernel that includes its params.
// It defines how it reads them: alias A = f32 or vec4f, B likewise, C and the addend likewise, with C_WIDTH elements each.

@group(0) @binding(0) var<storage, read> a: array<A>;
@group(0) @binding(1) var<storage, read> b: array<B>;
@group(0) @binding(2) var<storage, read> addend: array<C>;
@group(0) @binding(3) var<storage, read_write> c: array<C>;

// True where the sums start at what C holds.
fn continues() -> bool {
  return params.mode >= 3u;
}

// A loop bound that a compiler cannot see through: Mesa's CPU driver takes seconds to compile loads and stores unrolled.
fn hidden(bound: u32) -> u32 {
  return params.m * bound / params.m;
}

// before + scale sum, rounded once, in whichever kernel it is.
fn added_scaled(scale: f32, sum: C, before: C) -> C {
  return fma(C(scale), sum, before);
}

// Writes one result, where `sum` is that of the products along k. `column` counts elements of the type C.
fn store(row: u32, column: u32, sum: C) {
  let at = (params.c_offset + row * params.c_row) / C_WIDTH + column;
  var value = params.alpha * sum;
  if (params.mode == 1u) {
    value = added_scaled(params.alpha, sum, c[at]);
  } else if (params.mode == 2u || params.mode == 4u) {
    value += addend[(params.addend_offset + row * params.addend_row) / C_WIDTH + column];
  }
  c[at] = value;
}
