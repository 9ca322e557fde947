// The work of matmul/subgroup_matrix, by a kernel that includes matrix units and defines read_b(at), the vec4 at 4 at, and the
// magnitudes of the rows of A and of the columns of B.

//#include "matmul/parts/product.wgsl"
//#include "matmul/parts/tile_order.wgsl"
//#include "matmul/parts/powers.wgsl"

// How B lies: 1 along k, 0 along n.
override B_ALONG_K: u32 = 0u;

const ROWS = 128u;
const COLUMNS = 128u;
const STEP = 16u;
const C_WIDTH = 1u;
// From a staged column of B to the next, or from a row of k to the next; both padded by 16 bytes against bank conflicts.
const COLUMN_STRIDE = STEP + PADDING;
const K_STRIDE = COLUMNS + PADDING;
// The larger of both forms.
const TILE = COLUMNS * COLUMN_STRIDE;
// Columns of four subgroups that are staged at once.
const STRIP = 64u;

// For two steps.
var<workgroup> b_tile: array<Element, 2u * TILE>;
var<workgroup> staged: array<f32, 16u * STRIP>;

// A thread's place in the workgroup, and the tile's in C.
struct Place { thread: u32, subgroup: u32, row: u32, column: u32 }

// Two of the 512 quads of a staged step. Neighbouring threads read neighbouring addresses in either orientation.
struct Quads { first: vec4f, second: vec4f }

// In a tile: x = column, y = k.
fn quad_place(thread: u32, index: u32) -> vec2u {
  let quad = thread + index * 256u;
  if (B_ALONG_K == 1u) { return vec2u(quad / 4u, quad % 4u * 4u); }
  return vec2u(quad % 32u * 4u, quad / 32u);
}

fn fetch_quad(it: Place, index: u32, k0: u32) -> vec4f {
  let place = quad_place(it.thread, index) + vec2u(it.column, k0);
  let isInside = place.x < params.n && place.y < params.k;
  let at = (params.b_offset + place.y * params.b_k + place.x * params.b_column) / 4u;
  return select(vec4f(), read_b(select(0u, at, isInside)), isInside);
}

// What a quad of B is multiplied by, in every step.
fn quad_powers(it: Place, index: u32) -> vec4f {
  let column = it.column + quad_place(it.thread, index).x;
  let isQuad = B_ALONG_K == 0u;
  return vec4f(
    column_power(column),
    column_power(select(column, column + 1u, isQuad)),
    column_power(select(column, column + 2u, isQuad)),
    column_power(select(column, column + 3u, isQuad)),
  );
}

fn column_power(column: u32) -> f32 {
  return power_for(column_magnitudes[min(column, params.n - 1u)]);
}

fn put_quad(it: Place, index: u32, half: u32, values: vec4f) {
  let place = quad_place(it.thread, index);
  let elements = vec4<Element>(values);
  let at = half * TILE + select(place.y * K_STRIDE + place.x, place.x * COLUMN_STRIDE + place.y, B_ALONG_K == 1u);
  b_tile[at] = elements.x;
  b_tile[at + 1u] = elements.y;
  b_tile[at + 2u] = elements.z;
  b_tile[at + 3u] = elements.w;
}

fn right_at(half: u32, column: u32) -> Right {
  if (B_ALONG_K == 1u) { return load_right_columns(half * TILE + column * COLUMN_STRIDE, COLUMN_STRIDE); }
  return load_right(half * TILE + column, K_STRIDE);
}

fn write(row: u32, column: u32, scaled: f32) {
  var sum = without_powers(scaled, row_magnitudes[row], column_magnitudes[column]);
  if (continues()) { sum += c[params.c_offset + row * params.c_row + column]; }
  store(row, column, sum);
}

// Writes the same block of each subgroup's part of the tile, four subgroups at a time.
fn finish(it: Place, block: vec2u, sums: Sums) {
  for (var half = 0u; half < hidden(2u); half++) {
    workgroupBarrier();
    if (it.subgroup / 4u == half) { stage_sums(it.subgroup % 4u * 16u, sums, STRIP); }
    workgroupBarrier();
    for (var at = it.thread; at < hidden(16u * STRIP); at += 256u) {
      let row = it.row + half * 64u + block.y * 16u + at / STRIP;
      let column = it.column + at % STRIP / 16u * 32u + block.x * 16u + at % 16u;
      if (row < params.m && column < params.n) { write(row, column, staged[at]); }
    }
  }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) block: vec3u, lane: Lane) {
  let tile = tile_of(block);
  let it = Place(lane.thread, subgroup_of(lane), tile.x, tile.y);
  let steps = (params.k + STEP - 1u) / STEP;
  let firstPowers = quad_powers(it, 0u);
  let secondPowers = quad_powers(it, 1u);
  // A subgroup computes 64 x 32 of the tile: 4 x 2 blocks. Blocks of A that lie below each other are `below` apart.
  let below = steps * 256u;
  var leftAt = (it.row + it.subgroup / 4u * 64u) / 16u * below;
  let column = it.subgroup % 4u * 32u;
  // Only constants index them, so that they stay in registers.
  var sums: array<Sums, 8>;
  put_quad(it, 0u, 0u, fetch_quad(it, 0u, 0u) * firstPowers);
  put_quad(it, 1u, 0u, fetch_quad(it, 1u, 0u) * secondPowers);
  for (var step = 0u; step < steps; step++) {
    let half = step % 2u;
    // On their way while this step is multiplied; zeros beyond the last.
    let next = Quads(fetch_quad(it, 0u, (step + 1u) * STEP), fetch_quad(it, 1u, (step + 1u) * STEP));
    let left0 = load_left(leftAt);
    let left1 = load_left(leftAt + below);
    let left2 = load_left(leftAt + 2u * below);
    let left3 = load_left(leftAt + 3u * below);
    leftAt += 256u;
    workgroupBarrier();
    let right0 = right_at(half, column);
    let right1 = right_at(half, column + 16u);
    sums[0] = multiply_add(left0, right0, sums[0]);
    sums[1] = multiply_add(left0, right1, sums[1]);
    sums[2] = multiply_add(left1, right0, sums[2]);
    sums[3] = multiply_add(left1, right1, sums[3]);
    sums[4] = multiply_add(left2, right0, sums[4]);
    sums[5] = multiply_add(left2, right1, sums[5]);
    sums[6] = multiply_add(left3, right0, sums[6]);
    sums[7] = multiply_add(left3, right1, sums[7]);
    put_quad(it, 0u, 1u - half, next.first * firstPowers);
    put_quad(it, 1u, 1u - half, next.second * secondPowers);
  }
  finish(it, vec2u(0u, 0u), sums[0]);
  finish(it, vec2u(1u, 0u), sums[1]);
  finish(it, vec2u(0u, 1u), sums[2]);
  finish(it, vec2u(1u, 1u), sums[3]);
  finish(it, vec2u(0u, 2u), sums[4]);
  finish(it, vec2u(1u, 2u), sums[5]);
  finish(it, vec2u(0u, 3u), sums[6]);
  finish(it, vec2u(1u, 3u), sums[7]);
}
