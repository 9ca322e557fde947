// AdamW over elements [first, first + count) of flat buffers, gradient times the clip factor clip[1]:
//   mean += mean_rate (g - mean),  variance += variance_rate (g^2 - variance),
//   parameter = parameter (1 - rate decay) - rate / correction1 mean / (sqrt(variance / correction2) + epsilon)
// Nothing changes where clip[2] is set (the norm is not finite). Grid: a thread per vec4. arxiv.org/abs/1711.05101.

//#include "parts/threads.wgsl"

struct Params {
  first: u32,
  count: u32,
  learning_rate: f32,
  mean_rate: f32,
  variance_rate: f32,
  epsilon: f32,
  weight_decay: f32,
  correction1: f32,
  correction2: f32,
}

@group(0) @binding(0) var<storage, read> gradient: array<vec4f>;
@group(0) @binding(1) var<storage, read> clip: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> parameter: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> variance: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  if (index >= params.count / 4u) { return; }
  let clipping = clip[0];
  if (clipping.z != 0.0) { return; }
  let at = params.first / 4u + index;
  let g = gradient[at] * clipping.y;
  let old_mean = mean[at];
  let old_variance = variance[at];
  let m = old_mean + params.mean_rate * (g - old_mean);
  let s = old_variance + params.variance_rate * (g * g - old_variance);
  mean[at] = m;
  variance[at] = s;
  let rate = params.learning_rate / params.correction1;
  let decayed = parameter[at] * (1.0 - params.learning_rate * params.weight_decay);
  parameter[at] = decayed - rate * m / (sqrt(s / params.correction2) + params.epsilon);
}
