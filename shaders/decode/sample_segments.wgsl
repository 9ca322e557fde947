// The first step of sampling on GPUs: each segment's softmax and best logit, with nothing filtered out (decode/parts/filter.wgsl).
// logits [rows, stride], settings [rows, 4] from first_row. Grid: a workgroup per (row, segment).

//#include "decode/parts/filter.wgsl"
//#include "decode/parts/bests.wgsl"

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  let segment = segment_at(index);
  if (segment.row >= params.rows) { return; }
  var best = Best(segment.first * 4u, LOWEST);
  for (var quad = segment.first + lane; quad < segment.end; quad += THREADS) {
    best = best_with(best, quad, logits[segment.start + quad]);
  }
  join_bests(lane, best);
  join_threads(lane, thread_state(segment, lane, settings[params.first_row + segment.row].w));
  if (lane == 0u) {
    let state = states[0];
    segments[2u * index] = vec4f(state.highest, state.total, bests[0].logit, f32(bests[0].id));
    segments[2u * index + 1u] = vec4f(state.total, LOWEST, 0.0, 0.0);
  }
}
