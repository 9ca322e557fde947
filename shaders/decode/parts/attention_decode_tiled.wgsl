// Attention to keys and values that all lie in the cache.

//#include "decode/parts/attend_tiled.wgsl"
//#include "decode/parts/cached_attention.wgsl"

fn prepare(at: Query, lane: u32) {
  if (lane < HEAD_QUADS) {
    query[lane] = q[q_start(at.row, at.head) + lane] * (params.scale * LOG2_E);
  }
}

fn key_quad(at: u32, _d: u32, _is_own: bool) -> vec4f {
  return kept_quad(keys[at]);
}

fn value_element(at: u32, d: u32, _is_own: bool) -> f32 {
  return kept_element(values[at + d / 4u], d % 4u);
}
