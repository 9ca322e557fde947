// A cache of float32: what is kept is exact.

alias CachedQuad = vec4f;
alias CachedPair = vec2f;

fn keep_quad(x: vec4f) -> CachedQuad {
  return x;
}

fn keep_pair(x: vec2f) -> CachedPair {
  return x;
}

fn kept_quad(x: CachedQuad) -> vec4f {
  return x;
}

// Element i of a quad.
fn kept_element(x: CachedQuad, i: u32) -> f32 {
  return x[i];
}
