// Steps that all kernels of sampling share. A kernel defines params (vocabulary).
//#include "head/parts/columns.wgsl"

const LOWEST = -3.0e38;

struct Best { id: u32, logit: f32 }

// Lanes that hold a logit of the vocabulary.
fn used(quad: u32) -> vec4<bool> {
  return columns_of(quad) < vec4u(params.vocabulary);
}

// Integers in the order of the floats.
fn ordered(x: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(x);
  return bits ^ select(vec4u(0x80000000u), vec4u(0xffffffffu), bits >= vec4u(0x80000000u));
}

// The better of the best so far and a vec4 of logits; the lowest id of equals.
fn best_with(best: Best, quad: u32, logit: vec4f) -> Best {
  let x = select(vec4f(LOWEST), logit, used(quad));
  var found = best;
  for (var i = 0u; i < 4u; i++) {
    if (x[i] > found.logit) {
      found = Best(quad * 4u + i, x[i]);
    }
  }
  return found;
}
