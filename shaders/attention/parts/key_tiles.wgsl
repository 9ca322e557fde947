// Keys and values on their way through workgroup memory.

//#include "attention/parts/tiled.wgsl"

var<workgroup> keys: array<vec4f, LANES * PITCH>;
var<workgroup> values: array<vec4f, LANES * PITCH>;

// Fills the tiles from `key` on, and beyond `last` with the last.
fn load_keys(thread: u32, key: u32, last: u32, shared_at: u32) {
  for (var i = thread; i < LANES * HEAD_QUADS; i += THREADS) {
    let row = i / HEAD_QUADS;
    let d = i - row * HEAD_QUADS;
    let from_key = min(key + row, last);
    keys[row * PITCH + d] = k[k_start(from_key, shared_at) + d];
    values[row * PITCH + d] = v[v_start(from_key, shared_at) + d];
  }
}
