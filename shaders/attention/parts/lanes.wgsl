// A subgroup of 8 lanes as the workgroup, a thread per token of a block: each loads a vec4, and all see what the eight
// have. Shuffles are quicker than broadcasts here. A kernel defines attend(block, token, lane) and GRID_HEADS, how many of
// the grid's heads a thread takes.

//#include "parts/groups.wgsl"

// Query heads that share a key head and so its loads.
override HEADS: u32 = 2u;

const LANES = 8u;
const LOW = vec4u(0u, 1u, 2u, 3u);
const HIGH = vec4u(4u, 5u, 6u, 7u);

fn of_lanes(own: vec4f) -> array<vec4f, LANES> {
  return array(
    subgroupShuffle(own, 0u),
    subgroupShuffle(own, 1u),
    subgroupShuffle(own, 2u),
    subgroupShuffle(own, 3u),
    subgroupShuffle(own, 4u),
    subgroupShuffle(own, 5u),
    subgroupShuffle(own, 6u),
    subgroupShuffle(own, 7u),
  );
}

// Dot products of x with lanes 0 to 3.
fn low_dots(x: vec4f, y: array<vec4f, LANES>) -> vec4f {
  return vec4f(dot(x, y[0]), dot(x, y[1]), dot(x, y[2]), dot(x, y[3]));
}

// With lanes 4 to 7.
fn high_dots(x: vec4f, y: array<vec4f, LANES>) -> vec4f {
  return vec4f(dot(x, y[4]), dot(x, y[5]), dot(x, y[6]), dot(x, y[7]));
}

// The lanes' sum with weights.
fn weighted(low: vec4f, high: vec4f, y: array<vec4f, LANES>) -> vec4f {
  return low.x * y[0] + low.y * y[1] + low.z * y[2] + low.w * y[3]
    + high.x * y[4] + high.y * y[5] + high.z * y[6] + high.w * y[7];
}

@compute @workgroup_size(LANES)
fn main(group: Group, @builtin(subgroup_invocation_id) lane: u32) {
  let block = block_of(group_index(group), grid_heads() / GRID_HEADS, LANES);
  if (block.first < params.tokens) { attend(block, min(block.first + lane, block.last), lane); }
}
