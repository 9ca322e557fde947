// Tiles of 64 rows by 64 columns of scores, in the registers of a workgroup. Thread (x, y) has columns x, x + 16, x + 32 and
// x + 48 of row quad y, and of row quad y + 8 where HALVES is 2; of weighted sums it has vec4s x, x + 16, .. of the same rows.
// Operands pass through workgroup memory: 16 elements of every row and column for scores, whole rows of some columns for sums.
// A kernel defines attend(index, thread).

//#include "parts/groups.wgsl"

const SIDE = 64u;
const QUADS = 16u;
// A line of 64 rows or columns; one vec4 more than it holds, so that lines start in different banks.
const PITCH = 17u;
// Vec4s of a head whose elements are lines at a time.
const DEPTH = 4u;
// Where lines of rows and of columns start.
const LEFT = 0u;
const RIGHT = 272u;
const STAGED = 256u;

// 2 where the sums leave registers for twice the rows, so that a value that was read serves twice as often; otherwise 1.
override HALVES: u32 = 2u;
override HEIGHT: u32 = QUADS / HALVES;
override THREADS: u32 = HEIGHT * QUADS;
// Vec4s of a row that a thread owns: at most 4 / HALVES.
override OWN: u32 = (HEAD_QUADS + QUADS - 1u) / QUADS;
// Columns that are staged at a time.
override CHUNK: u32 = STAGED / HEAD_QUADS;

var<workgroup> lines: array<vec4f, 544>;
var<workgroup> staged: array<vec4f, STAGED>;

struct Thread { index: u32, x: u32, y: u32 }

// Of each half, four columns of four rows.
struct Scores { low: mat4x4f, high: mat4x4f }

// Four rows of a vec4: of vec4s 0 to 3 that the thread owns, or of both halves of 0, then of 1.
struct Sums { a: mat4x4f, b: mat4x4f, c: mat4x4f, d: mat4x4f }

// The vec4s that a thread turns into lines: number `quad` of a group of DEPTH, of four rows
// (side 0) or columns (side 1). Threads of further sides have none.
struct Part { quad: u32, place: u32, side: u32 }

fn part_of(thread: Thread) -> Part {
  let at = thread.index % SIDE;
  return Part(at % DEPTH, at / DEPTH, thread.index / SIDE);
}

fn put_lines(part: Part, fetched: mat4x4f) {
  let turned = transpose(fetched);
  let at = part.side * RIGHT + part.quad * 4u * PITCH + part.place;
  lines[at] = turned[0];
  lines[at + PITCH] = turned[1];
  lines[at + 2u * PITCH] = turned[2];
  lines[at + 3u * PITCH] = turned[3];
}

fn outer(sums: mat4x4f, factors: vec4f, by: vec4f) -> mat4x4f {
  return mat4x4f(
    fma(vec4f(factors.x), by, sums[0]),
    fma(vec4f(factors.y), by, sums[1]),
    fma(vec4f(factors.z), by, sums[2]),
    fma(vec4f(factors.w), by, sums[3]),
  );
}

// Adds the products of `count` lines of rows with those of columns, one after another.
fn add_products(scores: ptr<function, Scores>, thread: Thread, count: u32) {
  for (var line = 0u; line < count * PITCH; line += PITCH) {
    let columns = lines[RIGHT + line + thread.x];
    (*scores).low = outer((*scores).low, columns, lines[LEFT + line + thread.y]);
    if (HALVES == 2u) {
      (*scores).high = outer((*scores).high, columns, lines[LEFT + line + thread.y + HEIGHT]);
    }
  }
}

// Makes lines of the next 16 columns' scores.
fn put_scores(start: u32, thread: Thread, scores: ptr<function, Scores>) {
  let at = start + thread.x * PITCH + thread.y;
  let low = (*scores).low;
  lines[at] = low[0];
  (*scores).low = mat4x4f(low[1], low[2], low[3], vec4f());
  if (HALVES == 2u) {
    let high = (*scores).high;
    lines[at + HEIGHT] = high[0];
    (*scores).high = mat4x4f(high[1], high[2], high[3], vec4f());
  }
}

// Columns are staged in chunks, 16 columns' scores in one or more.
override QUARTER_CHUNKS: u32 = (QUADS + CHUNK - 1u) / CHUNK;

// Chunks of the columns of a tile that are needed.
fn chunks_of(columns: u32) -> u32 {
  return min(4u, (columns + QUADS - 1u) / QUADS) * QUARTER_CHUNKS;
}

fn column_of(chunk: u32) -> u32 {
  return chunk / QUARTER_CHUNKS * QUADS + chunk % QUARTER_CHUNKS * CHUNK;
}

fn own_quad(column: u32, thread: Thread, n: u32) -> vec4f {
  return staged[column * HEAD_QUADS + min(thread.x + n * QUADS, HEAD_QUADS - 1u)];
}

// Adds `count` staged columns, times their lines of scores from `line` on, one after another.
fn add_weighted(sums: ptr<function, Sums>, thread: Thread, line: u32, count: u32) {
  var at = line + thread.y;
  for (var column = 0u; column < count; column++) {
    let first = own_quad(column, thread, 0u);
    let low = lines[at];
    (*sums).a = outer((*sums).a, low, first);
    if (HALVES == 2u) {
      let high = lines[at + HEIGHT];
      (*sums).b = outer((*sums).b, high, first);
      if (OWN > 1u) {
        let second = own_quad(column, thread, 1u);
        (*sums).c = outer((*sums).c, low, second);
        (*sums).d = outer((*sums).d, high, second);
      }
    } else {
      if (OWN > 1u) { (*sums).b = outer((*sums).b, low, own_quad(column, thread, 1u)); }
      if (OWN > 2u) { (*sums).c = outer((*sums).c, low, own_quad(column, thread, 2u)); }
      if (OWN > 3u) { (*sums).d = outer((*sums).d, low, own_quad(column, thread, 3u)); }
    }
    at += PITCH;
  }
}

// Number `i` of the 4 HALVES OWN vec4s of Sums: its row of the tile, and its place in a head, which may lie behind its end.
struct Place { row: u32, quad: u32 }

fn place_of(thread: Thread, i: u32) -> Place {
  let group = i / 4u;
  return Place((thread.y + group % HALVES * HEIGHT) * 4u + i % 4u, thread.x + group / HALVES * QUADS);
}

// Brings the next vec4 to the front: sums that only constants index stay in registers.
fn shifted(sums: Sums) -> Sums {
  let end = vec4f();
  return Sums(
    mat4x4f(sums.a[1], sums.a[2], sums.a[3], sums.b[0]),
    mat4x4f(sums.b[1], sums.b[2], sums.b[3], sums.c[0]),
    mat4x4f(sums.c[1], sums.c[2], sums.c[3], sums.d[0]),
    mat4x4f(sums.d[1], sums.d[2], sums.d[3], end),
  );
}

// A loop bound that a compiler cannot see through: software drivers take half a minute over these loops unrolled.
fn hidden(bound: u32) -> u32 {
  return params.heads * bound / params.heads;
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) index: u32) {
  // Neighbours share rows and columns: 32 of them are 4 by 8.
  let thread = Thread(index, index % 8u + index / 32u % 2u * 8u, index / 8u % 4u + index / 64u * 4u);
  attend(group_index(group), thread);
}
