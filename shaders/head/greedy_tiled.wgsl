// greedy for GPUs: the same bindings, params and results. The threads of a row read neighbouring vec4s.
// Grid: a workgroup per row.

//#include "head/parts/greedy.wgsl"
//#include "parts/groups.wgsl"

const THREADS = 256u;

var<workgroup> beaten: atomic<u32>;

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  if (index >= params.rows) { return; }
  let start = index * params.stride / 4u;
  let row = params.first_row + index;
  let chosen = targets[row];
  let own = logits[start + chosen / 4u][chosen % 4u];
  var is_beaten = false;
  for (var quad = lane; quad * 4u < params.vocabulary; quad += THREADS) {
    is_beaten = is_beaten || beats(quad, logits[start + quad], chosen, own);
  }
  if (is_beaten) { atomicStore(&beaten, 1u); }
  workgroupBarrier();
  if (lane == 0u) {
    greedy[row] = select(1.0, 0.0, atomicLoad(&beaten) != 0u);
  }
}
