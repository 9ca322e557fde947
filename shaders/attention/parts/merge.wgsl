// Attention over a long sequence is a fold over chunks of CHUNK_KEYS keys, counted from its first one: of each chunk the sums of its
// values by their weights, the weights' total, and the highest score that both are relative to. A kernel that has all
// chunks and one that has a chunk per workgroup fold them the same way, so that their bits are equal.

const CHUNK_KEYS = 256u;

// Factors of what is there and of what is added, both relative to the higher of two scores: 0 for one that is empty.
struct Fold { keep: vec4f, add: vec4f }

fn fold_of(before: vec4f, added: vec4f) -> Fold {
  let higher = max(before, added);
  return Fold(exp2(before - higher), exp2(added - higher));
}

// An empty side adds nothing, not even a sign to zeros.
fn fold(before: vec4f, keep: vec4f, added: vec4f, add: vec4f) -> vec4f {
  let scaled = added * add;
  let both = select(fma(before, keep, scaled), scaled, keep == vec4f());
  return select(both, before, add == vec4f());
}
