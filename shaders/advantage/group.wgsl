// One advantage per trajectory from the scores of its group.
//   0 norm    (s - mean) / (deviation + eps), or s - mean; alone: s / (1 + eps), or 0 with eps below the deviation 0
//   1 others  s - mean of the others; alone: s or 0
//   2 best    the best row gets (best - second) [/ (deviation + eps)], the rest 0
//   3 length  s - sum n s / sum n, n = trained tokens; alone: s; without a trained token 0
// Grid: one invocation per group, striding.

const THREADS = 64u;

override MODE: u32 = 0u;
override BY_DEVIATION: bool = true;
override ALONE_IS_ZERO: bool = false;
override ORDERED: bool = false;

struct Params { groups: u32, ddof: f32, epsilon: f32 }

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> group_offsets: array<u32>;
@group(0) @binding(2) var<storage, read> members: array<u32>;
@group(0) @binding(3) var<storage, read> lengths: array<u32>;
@group(0) @binding(4) var<storage, read_write> advantages: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn member(k: u32) -> u32 {
  if (ORDERED) { return k; }
  return members[k];
}

// Scores as distances from the group's first: their sums do not cancel, and equal scores have exactly their own mean.
struct Moments { shift: f32, mean: f32, squares: f32 }

fn moments(first: u32, end: u32) -> Moments {
  let shift = scores[member(first)];
  var sum = 0.0;
  var squares = 0.0;
  for (var k = first; k < end; k++) {
    let x = scores[member(k)] - shift;
    sum += x;
    squares += x * x;
  }
  let n = f32(end - first);
  return Moments(shift, sum / n, max(squares - sum * sum / n, 0.0));
}

fn deviation(squares: f32, n: f32) -> f32 { return sqrt(squares / max(n - params.ddof, 1.0)); }

fn norm(first: u32, end: u32) {
  let n = f32(end - first);
  let alone = end - first == 1u;
  let found = moments(first, end);
  let shift = select(found.shift, 0.0, alone && !ALONE_IS_ZERO);
  var scale = 1.0;
  if (BY_DEVIATION) {
    scale = 1.0 / (select(deviation(found.squares, n), select(1.0, 0.0, ALONE_IS_ZERO), alone) + params.epsilon);
  }
  for (var k = first; k < end; k++) { advantages[member(k)] = (scores[member(k)] - shift - found.mean) * scale; }
}

fn others(first: u32, end: u32) {
  let n = f32(end - first);
  let alone = end - first == 1u;
  let found = moments(first, end);
  let shift = select(found.shift, 0.0, alone);
  let factor = select(n / (n - 1.0), select(1.0, 0.0, ALONE_IS_ZERO), alone);
  for (var k = first; k < end; k++) { advantages[member(k)] = (scores[member(k)] - shift - found.mean) * factor; }
}

fn best(first: u32, end: u32) {
  var top = first;
  for (var k = first + 1u; k < end; k++) {
    if (scores[member(k)] > scores[member(top)]) { top = k; }
  }
  var second = select(first, first + 1u, top == first);
  for (var k = first; k < end; k++) {
    if (k != top && scores[member(k)] > scores[member(second)]) { second = k; }
  }
  var gap = scores[member(top)] - scores[member(second)];
  if (BY_DEVIATION) { gap /= deviation(moments(first, end).squares, f32(end - first)) + params.epsilon; }
  for (var k = first; k < end; k++) { advantages[member(k)] = select(0.0, gap, k == top); }
}

fn length(first: u32, end: u32) {
  let shift = scores[member(first)];
  var tokens = 0.0;
  var sum = 0.0;
  for (var k = first; k < end; k++) {
    tokens += f32(lengths[member(k)]);
    sum += f32(lengths[member(k)]) * (scores[member(k)] - shift);
  }
  let alone = end - first == 1u;
  let mean = sum / max(tokens, 1.0);
  let origin = select(shift, 0.0, alone);
  let scale = select(1.0, 0.0, tokens == 0.0 && !alone);
  for (var k = first; k < end; k++) { advantages[member(k)] = (scores[member(k)] - origin - mean) * scale; }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  for (var group = id.x; group < params.groups; group += groups.x * THREADS) {
    let first = group_offsets[group];
    let end = group_offsets[group + 1u];
    if (end == first) { continue; }
    if (MODE == 0u) { norm(first, end); }
    if (MODE == 1u) { others(first, end); }
    if (MODE == 2u) { best(first, end); }
    if (MODE == 3u) { length(first, end); }
  }
}
