// logprob for GPUs: the same results, from what head/logprob_segments keeps of each segment.
// Grid: a workgroup per row.

//#include "head/parts/logprob.wgsl"
//#include "head/parts/segments.wgsl"

@group(0) @binding(5) var<storage, read> segments: array<vec4f>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  if (index >= params.rows) { return; }
  var own = State(EMPTY, 0.0, 0.0);
  for (var i = lane; i < segment_count(); i += THREADS) {
    let kept = segments[index * segment_count() + i];
    own = join(own, State(kept.x, kept.y, kept.z));
  }
  join_threads(lane, own);
  if (lane > 0u) { return; }
  finish(states[0], params.first_row + index, index * params.stride / 4u);
}
