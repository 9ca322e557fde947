// One row of an RMSNorm, by the same expressions wherever it is computed.

// 1 where the model stores weights less one.
override WEIGHT_OFFSET: f32 = 0.0;

// r of a row, by the sum of its squares.
fn inverse_rms_of(squares: f32, width: u32, epsilon: f32) -> f32 {
  return 1.0 / sqrt(squares / f32(width) + epsilon);
}

fn normalised(x: vec4f, r: f32, weight: vec4f) -> vec4f {
  return x * r * (WEIGHT_OFFSET + weight);
}
