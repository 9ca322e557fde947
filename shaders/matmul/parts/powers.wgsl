// Powers of two that bring the rows of a matrix into the range of f16: the largest magnitude of a row, as the bits of an f32,
// comes to lie in [2^14, 2^15), so that nothing overflows and what is 2^28 times smaller keeps all its bits. Rows that hold
// infinity or NaN stay as they are. Exponents are limited so that a power and its inverse are both normal numbers.

fn limited_exponent(magnitude: u32) -> u32 {
  let exponent = magnitude >> 23u;
  return select(max(exponent, 15u), 141u, exponent == 255u);
}

fn power_for(magnitude: u32) -> f32 {
  return bitcast<f32>((268u - limited_exponent(magnitude)) << 23u);
}

// A sum of products of a row and a column without their powers: in two steps, neither of which leaves the range of f32 unless
// the result does.
fn without_powers(sum: f32, row: u32, column: u32) -> f32 {
  let exponent = i32(limited_exponent(row) + limited_exponent(column)) - 282;
  let first = exponent / 2;
  return sum * power_of_two(first) * power_of_two(exponent - first);
}

fn power_of_two(exponent: i32) -> f32 {
  return bitcast<f32>(u32(exponent + 127) << 23u);
}
