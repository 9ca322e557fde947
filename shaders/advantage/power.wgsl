// For the optimal token baseline, per row: rewards to go G, the running power W of the score function, and the tokens
// of its columns.
//   W_t = sum over trained tokens up to t of (1 - 2 exp(old) + sum pi^2) isw^2
//   column k is the row's k-th trained token (COMPACT), or its k-th token; all ones = none
// Grid: one invocation per row; a row is a chain, rows share nothing.

//#include "parts/rows.wgsl"

override COMPACT: bool = false;
override WEIGHT: bool = false;

struct Params { rows: u32 }

@group(0) @binding(0) var<storage, read> old_logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> sum_pi_squared: array<f32>;
@group(0) @binding(2) var<storage, read> is_weights: array<f32>;
@group(0) @binding(3) var<storage, read> mask: array<u32>;
@group(0) @binding(4) var<storage, read> offsets: array<u32>;
@group(0) @binding(5) var<storage, read_write> power: array<f32>;
@group(0) @binding(6) var<storage, read_write> columns: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_row(row: u32) {
  let first = offsets[row];
  var next_column = first;
  var sum = 0.0;
  for (var t = first; t < offsets[row + 1u]; t++) {
    let trained = mask[t] != 0u;
    var weight = 1.0;
    if (WEIGHT) { weight = is_weights[t] * is_weights[t]; }
    sum += select(0.0, (1.0 - 2.0 * exp(old_logprobs[t]) + sum_pi_squared[t]) * weight, trained);
    power[t] = sum;
    if (trained || !COMPACT) {
      columns[next_column] = t;
      next_column++;
    }
  }
  for (var k = next_column; k < offsets[row + 1u]; k++) { columns[k] = 0xffffffffu; }
}
