// Buffers and state of logprob.
//#include "head/parts/logits.wgsl"
//#include "head/parts/state.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(3) var<storage, read_write> entropies: array<f32>;
@group(0) @binding(4) var<storage, read_write> log_sum_exps: array<f32>;

const LOWEST = -1e30;

// Writes the results of one row. `start`: the first vec4 of its logits.
fn finish(state: State, row: u32, start: u32) {
  let target_id = targets[row];
  let chosen = logits[start + target_id / 4u][target_id % 4u];
  let log_total = log(state.total);
  let lse = state.highest + log_total;
  logprobs[row] = fma(chosen, params.inverse_temperature, -lse);
  entropies[row] = log_total - state.weighted / state.total;
  log_sum_exps[row] = lse;
}
