// A cache of bfloat16, the upper half of a float32: two elements in a u32, the even one in the low half. What is kept is
// rounded to the nearest, ties to even; NaN stays NaN.

alias CachedQuad = vec2u;
alias CachedPair = u32;

fn keep_quad(x: vec4f) -> CachedQuad {
  return vec2u(keep_pair(x.xy), keep_pair(x.zw));
}

fn keep_pair(x: vec2f) -> CachedPair {
  let bits = bitcast<vec2u>(x);
  let is_nan = (bits & vec2u(0x7fffffffu)) > vec2u(0x7f800000u);
  let rounded = bits + vec2u(0x7fffu) + ((bits >> vec2u(16u)) & vec2u(1u));
  let halves = select(rounded, bits | vec2u(0x400000u), is_nan) >> vec2u(16u);
  return halves.x | (halves.y << 16u);
}

fn kept_quad(x: CachedQuad) -> vec4f {
  return bitcast<vec4f>(vec4u(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}

// Element i of a quad.
fn kept_element(x: CachedQuad, i: u32) -> f32 {
  let pair = x[i / 2u];
  return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, i % 2u == 1u));
}
