// Partial sums of advantage and log-prob over trained tokens, for the covariance losses.
// scratch: GROUPS pairs (sum A, sum logprob). Grid: GROUPS workgroups whatever T is.

//#include "loss/parts/tokens.wgsl"
//#include "loss/parts/advantages.wgsl"

alias Sum = vec2f;

struct Params { tokens: u32, row_stride: u32 }

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read> row_of_token: array<u32>;
@group(0) @binding(3) var<storage, read> advantages: array<f32>;
@group(0) @binding(4) var<storage, read_write> workspace: array<f32>;
@group(0) @binding(5) var<storage, read_write> scratch: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn term(t: u32) -> Sum {
  if (mask[t] == 0u) { return Sum(); }
  return vec2(advantage(t), logprobs[t]);
}

fn store(group: u32, sum: Sum) {
  scratch[2u * group] = sum.x;
  scratch[2u * group + 1u] = sum.y;
}
