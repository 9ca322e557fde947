// Some logits / temperature of a row.

struct State {
  highest: f32,
  // Sums of exp(x - highest) and of exp(x - highest) * (x - highest).
  total: f32,
  weighted: f32,
}
