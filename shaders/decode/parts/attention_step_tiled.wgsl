// A workgroup's part of a decoding step's attention. The header of decode/attention_step_tiled.wgsl has the formula. A kernel includes
// all_chunks.wgsl or one_chunk.wgsl.

//#include "decode/parts/attend_tiled.wgsl"
//#include "decode/parts/step.wgsl"

// The row's own key and value, as the cache keeps them: another workgroup may be writing them there.
var<workgroup> own_key: array<vec4f, HEAD_QUADS>;
var<workgroup> own_value: array<vec4f, HEAD_QUADS>;

// Quad `lane` of a head that starts at `at`, turned by the position.
fn turned(at: u32, lane: u32, position: u32) -> vec4f {
  let half = HEAD_QUADS / 2u;
  let d = lane % half;
  let angle = position * HEAD_QUADS + d;
  let halves = turn(Halves(qkv[at + d], qkv[at + half + d]), angles[angle], angles[angle + half]);
  return select(halves.low, halves.high, lane >= half);
}

fn row_start(row: u32) -> u32 {
  return row * (params.heads + 2u * params.key_heads) * HEAD_QUADS;
}

fn query_quad(row: u32, head: u32, position: u32, d: u32) -> vec4f {
  return turned(row_start(row) + head * HEAD_QUADS, d, position) * (params.scale * LOG2_E);
}

fn prepare(part: Part, position: u32, lane: u32) {
  if (lane >= HEAD_QUADS || part.last_chunk < position / CHUNK_KEYS) { return; }
  let key_at = row_start(part.row) + (params.heads + part.key_head) * HEAD_QUADS;
  let key = keep_quad(turned(key_at, lane, position));
  let value = keep_quad(qkv[key_at + params.key_heads * HEAD_QUADS + lane]);
  own_key[lane] = kept_quad(key);
  own_value[lane] = kept_quad(value);
  if (part.first_head == 0u) {
    let kept_at = (place(part.row, position) * params.key_heads + part.key_head) * HEAD_QUADS + lane;
    keys[kept_at] = key;
    values[kept_at] = value;
  }
}

fn key_quad(at: u32, d: u32, is_own: bool) -> vec4f {
  if (is_own) { return own_key[d]; }
  return kept_quad(keys[at]);
}

fn value_quad(at: u32, d: u32, is_own: bool) -> vec4f {
  if (is_own) { return own_value[d]; }
  return kept_quad(values[at]);
}
