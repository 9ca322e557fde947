// The work of matmul/tiled_large, by a kernel that defines read_b(at), the vec4 at 4 at.

//#include "matmul/parts/product.wgsl"
//#include "matmul/parts/tile_order.wgsl"

// Of a tile, 128 or 64, and as many threads.
override ROWS: u32 = 128u;

// Parts that k is cut into, as the grid's z. The sums of part z lie z m rows below those of the first.
override PARTS: u32 = 1u;

const MOST_ROWS = 128u;
const COLUMNS = 64u;
const STEP = 8u;
const C_WIDTH = 4u;
// Quads of a staged row, padded by one against bank conflicts.
const A_STRIDE = MOST_ROWS / 4u + 1u;
const B_STRIDE = COLUMNS / 4u + 1u;

// Row by row along k, for two steps.
var<workgroup> a_tiles: array<vec4f, 2u * STEP * A_STRIDE>;
var<workgroup> b_tiles: array<vec4f, 2u * STEP * B_STRIDE>;

// Eight rows of sums in the same four columns. Only constants index it, so that it stays in registers.
alias Sums = array<vec4f, 8>;

// A part of an operand that a tile needs: `first` and `extent` in rows of A or columns of B, up to `k_end` along k.
struct Operand { offset: u32, k_stride: u32, stride: u32, first: u32, extent: u32, quads: u32, k_end: u32 }

// Four vec4 of an operand, `stride` apart, of which `count` lie inside.
struct Block { at: u32, stride: u32, count: u32 }

fn is_along_k(it: Operand) -> bool {
  return it.k_stride == 1u;
}

// Neighbouring threads read neighbouring addresses in either orientation.
fn block_of(it: Operand, k0: u32, index: u32) -> Block {
  let k = k0 + k_quad(it, index) * 4u;
  let other = it.first + other_quad(it, index) * 4u;
  let at = (it.offset + k * it.k_stride + other * it.stride) / 4u;
  if (is_along_k(it)) {
    let rows = it.extent - min(other, it.extent);
    return Block(at, it.stride / 4u, select(0u, rows, k < it.k_end));
  }
  let rows = it.k_end - min(k, it.k_end);
  return Block(at, it.k_stride / 4u, select(0u, rows, other < it.extent));
}

fn k_quad(it: Operand, index: u32) -> u32 {
  return select(index / it.quads, index % (STEP / 4u), is_along_k(it));
}

fn other_quad(it: Operand, index: u32) -> u32 {
  return select(index % it.quads, index / (STEP / 4u), is_along_k(it));
}

fn a_quad(block: Block, row: u32) -> vec4f {
  let isInside = row < block.count;
  return select(vec4f(), a[select(0u, block.at + row * block.stride, isInside)], isInside);
}

fn b_quad(block: Block, row: u32) -> vec4f {
  let isInside = row < block.count;
  return select(vec4f(), read_b(select(0u, block.at + row * block.stride, isInside)), isInside);
}

fn shifted(sums: Sums, last: vec4f) -> Sums {
  return Sums(sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], last);
}

fn added(sums: Sums, low: vec4f, high: vec4f, columns: vec4f) -> Sums {
  return Sums(
    fma(vec4f(low.x), columns, sums[0]),
    fma(vec4f(low.y), columns, sums[1]),
    fma(vec4f(low.z), columns, sums[2]),
    fma(vec4f(low.w), columns, sums[3]),
    fma(vec4f(high.x), columns, sums[4]),
    fma(vec4f(high.y), columns, sums[5]),
    fma(vec4f(high.z), columns, sums[6]),
    fma(vec4f(high.w), columns, sums[7]),
  );
}

@compute @workgroup_size(ROWS)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let tile = tile_of(block);
  let length = (params.k + PARTS * 16u - 1u) / (PARTS * 16u) * 16u;
  let first = min(block.z * length, params.k);
  let end = min(first + length, params.k);
  let aPart = Operand(params.a_offset, params.a_k, params.a_row, tile.x, params.m, ROWS / 4u, end);
  let bPart = Operand(params.b_offset, params.b_k, params.b_column, tile.y, params.n, COLUMNS / 4u, end);
  let aBlocks = ROWS / 4u * (STEP / 4u);
  let isOfA = thread < aBlocks;
  let isOfB = !isOfA && thread - aBlocks < COLUMNS / 4u * (STEP / 4u);
  // A thread's rows and columns are two runs of four, so that neighbours read neighbouring vec4.
  let y = thread / 8u;
  let x = thread % 8u;
  let row0 = tile.x + y * 4u;
  let column = (tile.y / 4u) + x;
  let columns = params.n / 4u;
  var left: Sums;
  var right: Sums;
  let count = hidden(8u);
  if (continues()) {
    for (var i = 0u; i < count; i++) {
      let row = min(row0 + i / 4u * (ROWS / 2u) + i % 4u, params.m - 1u);
      let at = (params.c_offset + row * params.c_row) / 4u;
      left = shifted(left, c[at + min(column, columns - 1u)]);
      right = shifted(right, c[at + min(column + 8u, columns - 1u)]);
    }
  }
  // Whole steps of matmul/tiled: zeros are added where it adds them.
  let steps = (end - first + 15u) / 16u * 2u;
  for (var step = 0u; step <= steps; step++) {
    let half = step % 2u;
    var fetched: mat4x4f;
    if (step < steps && isOfA) {
      let source = block_of(aPart, first + step * STEP, thread);
      fetched = mat4x4f(a_quad(source, 0u), a_quad(source, 1u), a_quad(source, 2u), a_quad(source, 3u));
    } else if (step < steps && isOfB) {
      let source = block_of(bPart, first + step * STEP, thread - aBlocks);
      fetched = mat4x4f(b_quad(source, 0u), b_quad(source, 1u), b_quad(source, 2u), b_quad(source, 3u));
    }
    if (step > 0u) {
      var aAt = (1u - half) * STEP * A_STRIDE + y;
      var bAt = (1u - half) * STEP * B_STRIDE + x;
      for (var k = 0u; k < STEP; k++) {
        let low = a_tiles[aAt];
        let high = a_tiles[aAt + ROWS / 8u];
        let bLeft = b_tiles[bAt];
        let bRight = b_tiles[bAt + 8u];
        left = added(left, low, high, bLeft);
        right = added(right, low, high, bRight);
        aAt += A_STRIDE;
        bAt += B_STRIDE;
      }
    }
    if (step < steps && isOfA) {
      if (is_along_k(aPart)) { fetched = transpose(fetched); }
      let at = (half * STEP + k_quad(aPart, thread) * 4u) * A_STRIDE + other_quad(aPart, thread);
      a_tiles[at] = fetched[0];
      a_tiles[at + A_STRIDE] = fetched[1];
      a_tiles[at + 2u * A_STRIDE] = fetched[2];
      a_tiles[at + 3u * A_STRIDE] = fetched[3];
    } else if (step < steps && isOfB) {
      let index = thread - aBlocks;
      if (is_along_k(bPart)) { fetched = transpose(fetched); }
      let at = (half * STEP + k_quad(bPart, index) * 4u) * B_STRIDE + other_quad(bPart, index);
      b_tiles[at] = fetched[0];
      b_tiles[at + B_STRIDE] = fetched[1];
      b_tiles[at + 2u * B_STRIDE] = fetched[2];
      b_tiles[at + 3u * B_STRIDE] = fetched[3];
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < count; i++) {
    let row = row0 + i / 4u * (ROWS / 2u) + i % 4u;
    let stored = row + block.z * params.m;
    if (row < params.m && column < columns) { store(stored, column, left[0]); }
    if (row < params.m && column + 8u < columns) { store(stored, column + 8u, right[0]); }
    left = shifted(left, vec4f());
    right = shifted(right, vec4f());
  }
}
