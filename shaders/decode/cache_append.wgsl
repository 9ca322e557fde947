// keys[slots[r], positions[r] + shift, :] = k of row r; likewise values. Caches [slots, max_length, width].
// Positions beyond the cache are dropped. Grid: a thread per vec4 of a row.

//#include "parts/quads.wgsl"

struct Params {
  rows: u32,
  width: u32,
  k_stride: u32,
  k_offset: u32,
  v_stride: u32,
  v_offset: u32,
  max_length: u32,
  shift: u32,
}

@group(0) @binding(0) var<storage, read> k: array<vec4f>;
@group(0) @binding(1) var<storage, read> v: array<vec4f>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> keys: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> values: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn compute_quad(at: Quad) {
  let row = at.row;
  let position = positions[row] + params.shift;
  if (position >= params.max_length) { return; }
  let to = (slots[row] * params.max_length + position) * at.quads + at.column;
  keys[to] = k[(row * params.k_stride + params.k_offset) / 4u + at.column];
  values[to] = v[(row * params.v_stride + params.v_offset) / 4u + at.column];
}
