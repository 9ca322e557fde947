// One of the steps that find the smallest key which top-k and top-p keep (decode/parts/selection.wgsl). Rows without the filter
// of the step are left out. histograms start as zeros. Grid: a workgroup per (row, segment).

//#include "decode/parts/selection.wgsl"

var<workgroup> low_sums: array<atomic<u32>, BINS>;
var<workgroup> high_sums: array<atomic<u32>, BINS>;

// exp(x - highest) of the row.
fn highest_of(row: u32, lane: u32) -> f32 {
  var own = State(EMPTY, 0.0, 0.0);
  for (var i = lane; i < segment_count(); i += THREADS) {
    own.highest = max(own.highest, segments[2u * (row * segment_count() + i)].x);
  }
  join_threads(lane, own);
  return states[0].highest;
}

fn count(segment: Segment, lane: u32, choice: Choice, setting: vec4f, highest: f32) {
  let shift = 24u - 8u * (params.step % 4u);
  for (var quad = segment.first + lane; quad < segment.end; quad += THREADS) {
    let x = logits[segment.start + quad];
    let keys = ordered(x);
    let is_used = used(quad);
    let masses = exp(fma(x, vec4f(setting.w), vec4f(-highest))) * 0x1p20f;
    for (var i = 0u; i < 4u; i++) {
      // A shift by 32 is not defined.
      let is_settled = ((keys[i] >> shift) >> 8u) == ((choice.key >> shift) >> 8u);
      if (!is_used[i] || !is_settled || keys[i] < choice.floor_key) { continue; }
      let bin = (keys[i] >> shift) & (BINS - 1u);
      if (params.step < 4u) {
        atomicAdd(&low_sums[bin], 1u);
      } else {
        let whole = u32(masses[i]);
        atomicAdd(&high_sums[bin], whole);
        atomicAdd(&low_sums[bin], u32((masses[i] - f32(whole)) * 0x1p20f));
      }
    }
  }
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  let segment = segment_at(index);
  if (segment.row >= params.rows) { return; }
  let setting = settings[params.first_row + segment.row];
  if (!select(uses_top_p(setting), uses_top_k(setting), params.step < 4u)) { return; }
  let choice = choice_before(segment.row, params.step, lane, setting);
  let highest = highest_of(segment.row, lane);
  if (lane == 0u && segment.first == 0u) { store_choice(segment.row, params.step, choice); }
  for (var bin = lane; bin < BINS; bin += THREADS) {
    atomicStore(&low_sums[bin], 0u);
    atomicStore(&high_sums[bin], 0u);
  }
  workgroupBarrier();
  count(segment, lane, choice, setting, highest);
  workgroupBarrier();
  for (var bin = lane; bin < BINS; bin += THREADS) {
    let low = atomicLoad(&low_sums[bin]);
    let high = atomicLoad(&high_sums[bin]) + (low >> 20u);
    let at = histogram_at(segment.row, params.step) + bin;
    if (low + high > 0u) {
      atomicAdd(&histograms[at], low & 0xfffffu);
      atomicAdd(&histograms[at + BINS], high & 0xffffu);
      atomicAdd(&histograms[at + 2u * BINS], high >> 16u);
    }
  }
}
