// Attention to keys and values that all lie in the cache.

//#include "decode/parts/attend_tiled.wgsl"
//#include "decode/parts/all_chunks.wgsl"
//#include "decode/parts/cached_attention.wgsl"

fn prepare(_part: Part, _position: u32, _lane: u32) {}

fn query_quad(row: u32, head: u32, _position: u32, d: u32) -> vec4f {
  return q[q_start(row, head) + d] * (params.scale * LOG2_E);
}

fn key_quad(at: u32, _d: u32, _is_own: bool) -> vec4f {
  return kept_quad(keys[at]);
}

fn value_quad(at: u32, _d: u32, _is_own: bool) -> vec4f {
  return kept_quad(values[at]);
}
