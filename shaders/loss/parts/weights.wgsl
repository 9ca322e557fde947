// Weights of an aggregation. A kernel binds row_of_token and row_weights, and its Params hold `weight`.

override ROW_WEIGHTED: bool = false;

fn weight_of(t: u32) -> f32 {
  if (ROW_WEIGHTED) { return row_weights[row_of_token[t]]; }
  return params.weight;
}
