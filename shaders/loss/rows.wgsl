// What couples the tokens of a row, before the loss pass: columns 2 and 3 of the row table (a, b), by the function
// row_numbers of a row statistic (src/engine/algorithm/loss/row_statistic.ts), which is joined to this frame with its Settings.
// d = logprob - old over the row's trained tokens.
// Grid: one invocation per row; rows are ragged and nothing is shared between them.

//#include "parts/rows.wgsl"

override OLD: bool = true;
override TOKEN_ADVANTAGE: bool = false;
override WEIGHT: bool = false;

struct Params { rows: u32, row_stride: u32, spare0: u32, spare1: u32, settings: Settings }

@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> old_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(0) @binding(4) var<storage, read> advantages: array<f32>;
@group(0) @binding(5) var<storage, read> is_weights: array<f32>;
@group(0) @binding(6) var<storage, read_write> workspace: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn log_ratio(t: u32) -> f32 {
  return select(0.0, logprobs[t] - old_logprobs[t], OLD);
}

fn advantage(row: u32, t: u32) -> f32 {
  if (TOKEN_ADVANTAGE) { return advantages[t]; }
  return workspace[params.row_stride + row];
}

fn is_weight(t: u32) -> f32 {
  if (WEIGHT) { return is_weights[t]; }
  return 1.0;
}

fn compute_row(row: u32) {
  let numbers = row_numbers(row, offsets[row], offsets[row + 1u]);
  workspace[2u * params.row_stride + row] = numbers.x;
  workspace[3u * params.row_stride + row] = numbers.y;
}
