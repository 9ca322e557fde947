// The loss of a pairwise reward model over scores: element 2i is the chosen row's, 2i + 1 the rejected row's. For each pair
//   values = -log s(z) + center (c + r)^2, z = c - r - margin, s the logistic function
//   dscores = scale (-s(-z) + 2 center (c + r)) for c, scale (s(-z) + 2 center (c + r)) for r
// scores [2P], margins [P], values [P], dscores [2P]. Grid: one invocation per pair.
// See TRL's RewardTrainer.

//#include "parts/threads.wgsl"
//#include "preference/parts/logistic.wgsl"

struct Params {
  pairs: u32,
  scale: f32,
  center: f32,
}

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> margins: array<f32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read_write> dscores: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(pair: u32) {
  if (pair >= params.pairs) { return; }
  let chosen = scores[2u * pair];
  let rejected = scores[2u * pair + 1u];
  let ahead = chosen - rejected - margins[pair];
  let total = chosen + rejected;
  values[pair] = softplus(-ahead) + params.center * total * total;
  let slope = -logistic(-ahead);
  let pull = 2.0 * params.center * total;
  dscores[2u * pair] = params.scale * (slope + pull);
  dscores[2u * pair + 1u] = params.scale * (pull - slope);
}
