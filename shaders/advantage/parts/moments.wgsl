// What the two passes of whitening share: a division of vec4s over threads, and moments {count, mean, sum of squared
// distances from the mean}. Moments of parts are merged by the difference of their means, so that sums do not cancel, and
// equal values have exactly their own value as mean.
//#include "parts/spans.wgsl"

const THREADS = 64u;
const GROUPS = 64u;
const LANES = 16u;

fn merge(a: vec3f, b: vec3f) -> vec3f {
  if (b.x == 0.0) { return a; }
  if (a.x == 0.0) { return b; }
  let count = a.x + b.x;
  let apart = b.y - a.y;
  let share = b.x / count;
  return vec3(count, a.y + apart * share, a.z + b.z + apart * apart * a.x * share);
}
