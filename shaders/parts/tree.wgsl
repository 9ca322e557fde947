// The sum of a workgroup's threads by a fixed tree, so that it repeats bit for bit.
// A kernel defines THREADS and alias Sum = f32 or a vector.
//#include "parts/halves.wgsl"

var<workgroup> shared_sums: array<Sum, THREADS>;

// Leaves the sum in shared_sums[0], for the first thread.
fn sum_threads(thread: u32, own: Sum) {
  shared_sums[thread] = own;
  for (var half = THREADS / 2u; half > 0u; half = next_half(half)) {
    workgroupBarrier();
    if (thread < half) {
      shared_sums[thread] += shared_sums[thread + half];
    }
  }
}
