// Values that run backwards through each row (m = mask, R = token rewards, or the score at the last trained token):
//   0 gae            g = R + gamma V_next - V + gamma lam g_next over trained tokens; returns = g + V
//   1 discounted     G = R + gamma G_next over trained tokens
//   2 reset          G = R + gamma G_next, set to 0 behind every masked token
//   3 reward-to-go   G = R m + G_next; advantages = G - baseline m
// Grid: one invocation per row; a row is a chain, rows share nothing.

//#include "parts/rows.wgsl"

const NO_VECTOR = 0xffffffffu;

override MODE: u32 = 0u;
override TOKEN_REWARDS: bool = true;
override BASELINE: bool = true;

struct Params { rows: u32, gamma: f32, lam: f32 }

@group(0) @binding(0) var<storage, read> rewards: array<vec4f>;
@group(0) @binding(1) var<storage, read> mask: array<vec4u>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
// Critic values per token (gae), baselines per row (reward-to-go).
@group(0) @binding(3) var<storage, read> values: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> advantages: array<f32>;
@group(0) @binding(5) var<storage, read_write> returns: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_row(row: u32) {
  let first = offsets[row];
  var score = 0.0;
  if (!TOKEN_REWARDS) { score = rewards[row / 4u][row % 4u]; }
  var baseline = 0.0;
  if (MODE == 3u && BASELINE) { baseline = values[row / 4u][row % 4u]; }
  // Four tokens are read at once: a software GPU pays by the load.
  var held = NO_VECTOR;
  var masks = vec4(0u);
  var reward_vector = vec4(0.0);
  var value_vector = vec4(0.0);
  var seen_last = false;
  var next = 0.0;
  var next_value = 0.0;
  for (var t = offsets[row + 1u]; t > first; t--) {
    let i = t - 1u;
    let k = i % 4u;
    if (i / 4u != held) {
      held = i / 4u;
      masks = mask[held];
      if (TOKEN_REWARDS) { reward_vector = rewards[held]; }
      if (MODE == 0u) { value_vector = values[held]; }
    }
    let trained = masks[k] != 0u;
    let reward = select(select(0.0, score, trained && !seen_last), reward_vector[k], TOKEN_REWARDS);
    seen_last = seen_last || trained;
    if (MODE == 0u) {
      let value = value_vector[k];
      let g = reward + params.gamma * next_value - value + params.gamma * params.lam * next;
      if (trained) {
        next = g;
        next_value = value;
      }
      advantages[i] = select(0.0, g, trained);
      returns[i] = select(0.0, g + value, trained);
    } else if (MODE == 3u) {
      next += select(0.0, reward, trained);
      returns[i] = next;
      advantages[i] = next - select(0.0, baseline, trained);
    } else {
      let running = reward + params.gamma * next;
      next = select(select(next, 0.0, MODE == 2u), running, trained);
      let kept = select(0.0, running, trained || MODE == 2u);
      returns[i] = kept;
      advantages[i] = kept;
    }
  }
}
