// A grid over the tokens of a batch, and a sum over them by workgroups.
// A kernel defines alias Sum, term(t), which computes a token and returns what it adds, and store(group, sum).
//#include "parts/spans.wgsl"
//#include "parts/tree.wgsl"

const THREADS = 256u;
const GROUPS = 64u;
const LANES = 32u;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  var own = Sum();
  let span = span_of(group.x * THREADS + thread, params.tokens);
  for (var t = span.first; t < span.end; t += LANES) { own += term(t); }
  sum_threads(thread, own);
  if (thread == 0u) { store(group.x, shared_sums[0]); }
}
