// Parameters and inputs of what compares trainer and sampler by rows.

const SAFETY = 20.0;

struct Params { rows: u32, low: f32, high: f32 }

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> rollout_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

fn within(x: f32) -> bool {
  return x >= params.low && x <= params.high;
}
