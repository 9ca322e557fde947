// {highest, total, weighted} of each (row, segment) of logits / temperature, for head/logprob_tiled.
// logits [rows, stride], segments [rows, segments] vec4s. Grid: a workgroup per (row, segment).

//#include "head/parts/logits.wgsl"
//#include "head/parts/segments.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> segments: array<vec4f>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  let segment = segment_at(index);
  if (segment.row >= params.rows) { return; }
  join_threads(lane, thread_state(segment, lane, params.inverse_temperature));
  if (lane == 0u) {
    segments[index] = vec4f(states[0].highest, states[0].total, states[0].weighted, 0.0);
  }
}
