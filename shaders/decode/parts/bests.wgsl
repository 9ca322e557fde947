// The best logit of a workgroup's threads. A kernel defines THREADS.
//#include "decode/parts/sampling.wgsl"
//#include "parts/halves.wgsl"

var<workgroup> bests: array<Best, THREADS>;

fn better(a: Best, b: Best) -> Best {
  if (b.logit > a.logit || (b.logit == a.logit && b.id < a.id)) {
    return b;
  }
  return a;
}

// Leaves the best in bests[0], the lowest id of equals. All threads may read it.
fn join_bests(lane: u32, own: Best) {
  bests[lane] = own;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (lane < half) {
      bests[lane] = better(bests[lane], bests[lane + half]);
    }
  }
  workgroupBarrier();
}
