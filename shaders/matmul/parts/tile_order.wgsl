// The order in which workgroups take tiles of ROWS x COLUMNS of C, both defined by the kernel.

// Row tiles that are computed next to each other, so that their columns of B are still in the cache.
const GROUP = 8u;

// The first row and column of a workgroup's tile.
fn tile_of(block: vec3u) -> vec2u {
  let size = vec2u((params.m + ROWS - 1u) / ROWS, (params.n + COLUMNS - 1u) / COLUMNS);
  let index = block.y * size.y + block.x;
  let first = index / (GROUP * size.y) * GROUP;
  let rows = min(GROUP, size.x - first);
  let inGroup = index - first * size.y;
  return vec2u((first + inGroup % rows) * ROWS, inGroup / rows * COLUMNS);
}
