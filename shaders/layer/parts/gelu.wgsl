// The GELU in its form with tanh.

// 2 sqrt(2 / pi).
const SLOPE = 1.5957691216057308;
const CUBIC = 0.044715;

// gelu(g) / g = (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)).
fn share(gate: vec4f) -> vec4f {
  return 1.0 / (1.0 + exp(-SLOPE * gate * (1.0 + CUBIC * gate * gate)));
}
