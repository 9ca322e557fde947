// What couples the tokens of a row, before the loss pass. Columns 2 and 3 of the row table (a, b):
//   0 mean-log-ratio          a = sum d / max(n, 1)
//   1 geometric-mean          a = loss / n, b = -A S w / (n + eps): S, A, w geometric or plain means over the row
//   2 sequence-surrogate      a = sum d / max(n, 1), b = mean of isw L'(a)
//   3 sequence-sum-surrogate  a = sum d,             b = sum of isw L'(a)
//   4 vespo                   a = clamp(sum clamp(d) + log isw)
// with d = logprob - old over the row's trained tokens, n of them.
// Grid: one invocation per row; rows are ragged and nothing is shared between them.

//#include "parts/rows.wgsl"

override STATISTIC: u32 = 0u;
override OLD: bool = true;
override TOKEN_ADVANTAGE: bool = false;
override WEIGHT: bool = false;

struct Params { rows: u32, row_stride: u32, low: f32, high: f32, delta: f32 }

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

// The log-ratio's share in the row statistic.
fn term(row: u32, t: u32) -> f32 {
  let d = log_ratio(t);
  if (STATISTIC == 1u) {
    let side = sign(advantage(row, t));
    return side * min(side * d, side * clamp(d, params.low, params.high));
  }
  if (STATISTIC == 4u) {
    return clamp(d, -20.0, 20.0) + select(0.0, clamp(log(max(is_weight(t), 1e-30)), log(1e-8), 20.0), WEIGHT);
  }
  return d;
}

// Derivative of the clipped surrogate in the log-ratio (loss/policy.wgsl, surrogate).
fn surrogate_slope(log_ratio: f32, a: f32) -> f32 {
  let raw = exp(log_ratio);
  let plain = -a * min(raw, params.delta);
  let clipped = -a * clamp(raw, params.low, params.high);
  let flows = select(raw >= params.low && raw <= params.high, raw <= params.delta, plain > clipped);
  return select(0.0, -a * raw, flows);
}

fn compute_row(row: u32) {
  let first = offsets[row];
  let end = offsets[row + 1u];
  var n = 0.0;
  var sum = 0.0;
  var sum_advantage = 0.0;
  var sum_log_weight = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] == 0u) { continue; }
    n += 1.0;
    sum += term(row, t);
    if (STATISTIC == 1u) {
      sum_advantage += advantage(row, t);
      sum_log_weight += select(0.0, log(is_weight(t) + 1e-10), WEIGHT);
    }
  }
  let length = max(n, 1.0);
  var a = sum / length;
  var b = 0.0;
  if (STATISTIC == 1u) {
    let loss = -sum_advantage / length * exp(sum / length) * exp(sum_log_weight / length);
    a = loss / length;
    b = loss / length;
  }
  if (STATISTIC == 4u) { a = clamp(sum, log(1e-8), 20.0); }
  if (STATISTIC == 2u || STATISTIC == 3u) {
    if (STATISTIC == 3u) { a = sum; }
    for (var t = first; t < end; t++) {
      if (mask[t] != 0u) { b += is_weight(t) * surrogate_slope(a, advantage(row, t)); }
    }
    if (STATISTIC == 2u) { b /= length; }
  }
  workspace[2u * params.row_stride + row] = a;
  workspace[3u * params.row_stride + row] = b;
}
