// After the steps of decode/sample_histogram: what filters keep of each segment (decode/parts/filter.wgsl).
// Rows without a filter stay as they are. Grid: a workgroup per (row, segment).

//#include "decode/parts/selection.wgsl"
//#include "parts/tree.wgsl"

alias Sum = f32;

// The smallest key kept.
fn least_key(row: u32, lane: u32, setting: vec4f) -> u32 {
  if (!uses_top_p(setting)) { return settle(row, 3u, lane, setting.y).key; }
  let choice = settle(row, 7u, lane, setting.y);
  return max(choice.key, choice.floor_key);
}

// The float of a key, at least LOWEST.
fn logit_of(key: u32) -> f32 {
  let at_least = max(key, ordered(vec4f(LOWEST)).x);
  return bitcast<f32>(at_least ^ select(0xffffffffu, 0x80000000u, at_least >= 0x80000000u));
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  let segment = segment_at(index);
  if (segment.row >= params.rows) { return; }
  let setting = settings[params.first_row + segment.row];
  if (!uses_top_k(setting) && !uses_top_p(setting)) { return; }
  let least = logit_of(least_key(segment.row, lane, setting));
  let highest = segments[2u * index].x;
  var masses = vec4f();
  for (var quad = segment.first + lane; quad < segment.end; quad += THREADS) {
    let x = logits[segment.start + quad];
    let is_kept = used(quad) & (x >= vec4f(least));
    masses += select(vec4f(), exp(fma(x, vec4f(setting.w), vec4f(-highest))), is_kept);
  }
  sum_threads(lane, dot(masses, vec4f(1.0)));
  if (lane == 0u) {
    segments[2u * index + 1u] = vec4f(shared_sums[0], least, 0.0, 0.0);
  }
}
