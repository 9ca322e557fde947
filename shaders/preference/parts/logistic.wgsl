// The logistic function, and log(1 + e^x), without overflow.

fn softplus(x: f32) -> f32 {
  return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

fn logistic(x: f32) -> f32 {
  let small = exp(-abs(x));
  return select(small, 1.0, x >= 0.0) / (1.0 + small);
}
