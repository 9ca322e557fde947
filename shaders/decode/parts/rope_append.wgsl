// Turns q and k, and keeps k and v. The header of decode/rope_append.wgsl has the formula.

//#include "parts/threads.wgsl"
//#include "decode/parts/pages.wgsl"

struct Params { rows: u32, heads: u32, key_heads: u32, width: u32, row_pages: u32, shift: u32, rotates: u32 }

@group(0) @binding(0) var<storage, read> pages: array<u32>;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2f>;
@group(0) @binding(3) var<storage, read_write> qkv: array<vec2f>;
@group(0) @binding(4) var<storage, read_write> keys: array<CachedPair>;
@group(0) @binding(5) var<storage, read_write> values: array<CachedPair>;
@group(1) @binding(0) var<uniform> params: Params;

// `half` counts pairs: a head has two halves of them.
fn compute_thread(index: u32) {
  let half = params.width / 4u;
  let per_row = params.heads + 2u * params.key_heads;
  let row = index / (per_row * half);
  if (row >= params.rows) { return; }
  let head = index / half % per_row;
  let d = index % half;
  let at = (row * per_row + head) * 2u * half + d;
  var low = qkv[at];
  var high = qkv[at + half];
  let position = positions[row] + params.shift;
  let is_value = head >= params.heads + params.key_heads;
  if (!is_value && params.rotates == 1u) {
    let angle = position * 2u * half + d;
    let cosine = angles[angle];
    let sine = angles[angle + half];
    let turned = fma(low, cosine, -(high * sine));
    high = fma(high, cosine, low * sine);
    low = turned;
  }
  if (head < params.heads) {
    qkv[at] = low;
    qkv[at + half] = high;
    return;
  }
  let key_head = (head - params.heads) % params.key_heads;
  let to = (place(row, position) * params.key_heads + key_head) * 2u * half + d;
  if (is_value) {
    values[to] = keep_pair(low);
    values[to + half] = keep_pair(high);
  } else {
    keys[to] = keep_pair(low);
    keys[to + half] = keep_pair(high);
  }
}
