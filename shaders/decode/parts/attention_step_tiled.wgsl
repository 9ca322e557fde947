// A workgroup's part of a decoding step's attention. The header of decode/attention_step_tiled.wgsl has the formula.

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

fn prepare(at: Query, lane: u32) {
  if (lane >= HEAD_QUADS) { return; }
  let sharing = params.heads / params.key_heads;
  let row_at = at.row * (params.heads + 2u * params.key_heads) * HEAD_QUADS;
  let key_at = row_at + (params.heads + at.head / sharing) * HEAD_QUADS;
  let value_at = key_at + params.key_heads * HEAD_QUADS;
  let key = keep_quad(turned(key_at, lane, at.position));
  let value = keep_quad(qkv[value_at + lane]);
  query[lane] = turned(row_at + at.head * HEAD_QUADS, lane, at.position) * (params.scale * LOG2_E);
  own_key[lane] = kept_quad(key);
  own_value[lane] = kept_quad(value);
  if (at.head % sharing == 0u) {
    let kept_at = (place(at.row, at.position) * params.key_heads + at.head / sharing) * HEAD_QUADS + lane;
    keys[kept_at] = key;
    values[kept_at] = value;
  }
}

fn key_quad(at: u32, d: u32, is_own: bool) -> vec4f {
  if (is_own) { return own_key[d]; }
  return kept_quad(keys[at]);
}

fn value_element(at: u32, d: u32, is_own: bool) -> f32 {
  if (is_own) { return own_value[d / 4u][d % 4u]; }
  return kept_element(values[at + d / 4u], d % 4u);
}
