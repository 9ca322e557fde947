// The smallest key that top-k and top-p keep, found a byte of the ordered float at a time. Step 4 s + l counts by byte l,
// from the highest, the keys whose higher bytes are settled: of logits for top-k (s = 0), of their mass for top-p (s = 1).
// histograms [rows, 8 steps, 3, 256]: a bin is low + 2^20 middle + 2^36 high, in units of 1 or of 2^-40, so that sums are
// integers, whose order does not matter. choices [rows, 8]: what each step starts from.
//#include "decode/parts/filter.wgsl"

const BINS = 256u;
const RUN = 16u;
const STEPS = 8u;

@group(0) @binding(3) var<storage, read_write> histograms: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> choices: array<vec4u>;

var<workgroup> bin_values: array<f32, BINS>;
var<workgroup> run_values: array<f32, RUN>;

struct Choice {
  // Settled bytes; those below are 0.
  key: u32,
  // Keys below it are out: those that top-k drops, while top-p chooses.
  floor_key: u32,
  // Count or mass of the keys above the settled bytes, and what the kept ones must reach.
  above: f32,
  enough: f32,
}

fn load_choice(row: u32, step: u32) -> Choice {
  let kept = choices[row * STEPS + step];
  return Choice(kept.x, kept.y, bitcast<f32>(kept.z), bitcast<f32>(kept.w));
}

fn store_choice(row: u32, step: u32, choice: Choice) {
  choices[row * STEPS + step] = vec4u(choice.key, choice.floor_key, bitcast<u32>(choice.above), bitcast<u32>(choice.enough));
}

fn uses_top_k(setting: vec4f) -> bool {
  return setting.x != 0.0 && setting.z > 0.0 && u32(setting.z) < params.vocabulary;
}

fn uses_top_p(setting: vec4f) -> bool {
  return setting.x != 0.0 && setting.y < 1.0;
}

fn histogram_at(row: u32, step: u32) -> u32 {
  return (row * STEPS + step) * 3u * BINS;
}

fn bin_value(at: u32, is_count: bool) -> f32 {
  let low = f32(atomicLoad(&histograms[at]));
  let middle = f32(atomicLoad(&histograms[at + BINS]));
  let high = f32(atomicLoad(&histograms[at + 2u * BINS]));
  return select(fma(high, 0x1p-4f, fma(middle, 0x1p-20f, low * 0x1p-40f)), low, is_count);
}

// Settles the byte that a step has counted: the largest at which enough is reached.
fn settle(row: u32, step: u32, lane: u32, top_p: f32) -> Choice {
  var choice = load_choice(row, step);
  for (var bin = lane; bin < BINS; bin += THREADS) {
    bin_values[bin] = bin_value(histogram_at(row, step) + bin, step < 4u);
  }
  workgroupBarrier();
  if (lane < RUN) {
    var sum = 0.0;
    for (var i = 0u; i < RUN; i++) { sum += bin_values[lane * RUN + i]; }
    run_values[lane] = sum;
  }
  workgroupBarrier();
  if (step == 4u) {
    var all = 0.0;
    for (var run = RUN; run > 0u; run--) { all += run_values[run - 1u]; }
    // Never empty.
    choice.enough = max(top_p * all, 1e-30);
  }
  // Where rounding hides that enough is reached, all of the settled bytes' keys are kept.
  var run = RUN - 1u;
  while (run > 0u && choice.above + run_values[run] < choice.enough) {
    choice.above += run_values[run];
    run--;
  }
  var bin = RUN - 1u;
  while (bin > 0u && choice.above + bin_values[run * RUN + bin] < choice.enough) {
    choice.above += bin_values[run * RUN + bin];
    bin--;
  }
  choice.key |= (run * RUN + bin) << (24u - 8u * (step % 4u));
  return choice;
}

// What a step starts from; all of the row's workgroups get the same.
fn choice_before(row: u32, step: u32, lane: u32, setting: vec4f) -> Choice {
  if (step % 4u != 0u) { return settle(row, step - 1u, lane, setting.y); }
  if (step == 0u) { return Choice(0u, 0u, 0.0, f32(u32(setting.z))); }
  var floor_key = 0u;
  if (uses_top_k(setting)) { floor_key = settle(row, 3u, lane, setting.y).key; }
  return Choice(0u, floor_key, 0.0, 0.0);
}
