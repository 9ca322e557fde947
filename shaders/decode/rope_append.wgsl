// One decoding step's q turned by its position in place, k turned into the cache, v copied into it.
//
// qkv [rows, (H + 2 KV) D]; angles [positions, D]: cos of D/2 pairs, then sin; keys, values [slots, max_length, KV D].
// A thread owns one pair (d, d + D/2) of one head of one row. Grid: rows * (H + 2 KV) * D / 2 threads.

//#include "parts/threads.wgsl"

struct Params { rows: u32, heads: u32, key_heads: u32, width: u32, max_length: u32, shift: u32 }

@group(0) @binding(0) var<storage, read> slots: array<u32>;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<f32>;
@group(0) @binding(3) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(4) var<storage, read_write> keys: array<f32>;
@group(0) @binding(5) var<storage, read_write> values: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_thread(index: u32) {
  let half = params.width / 2u;
  let perRow = params.heads + 2u * params.key_heads;
  let row = index / (perRow * half);
  if (row >= params.rows) { return; }
  let head = index / half % perRow;
  let d = index % half;
  let at = row * perRow * params.width + head * params.width + d;
  let low = qkv[at];
  let high = qkv[at + half];
  let position = positions[row] + params.shift;
  let isValue = head >= params.heads + params.key_heads;
  var turned = vec2f(low, high);
  if (!isValue) {
    let angle = position * params.width + d;
    let cosine = angles[angle];
    let sine = angles[angle + half];
    turned = vec2f(fma(low, cosine, -(high * sine)), fma(high, cosine, low * sine));
  }
  if (head < params.heads) {
    qkv[at] = turned.x;
    qkv[at + half] = turned.y;
    return;
  }
  if (position >= params.max_length) { return; }
  let keyHead = (head - params.heads) % params.key_heads;
  let to = ((slots[row] * params.max_length + position) * params.key_heads + keyHead) * params.width + d;
  if (isValue) {
    values[to] = turned.x;
    values[to + half] = turned.y;
  } else {
    keys[to] = turned.x;
    keys[to + half] = turned.y;
  }
}
