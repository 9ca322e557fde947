// The work of matmul/halves and matmul/blocks, by a kernel that defines put(at, values), which writes the elements at 2 at and 2 at + 1.
// Grid: a thread per two elements.

//#include "parts/threads.wgsl"
//#include "matmul/parts/powers.wgsl"

struct Params { m: u32, k: u32, a_offset: u32, a_row: u32, a_k: u32 }

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> magnitudes: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

// Of a block.
const PAIRS = 128u;

fn compute_thread(index: u32) {
  let acrossK = (params.k + 15u) / 16u;
  let block = index / PAIRS;
  if (block >= (params.m + 127u) / 128u * 8u * acrossK) { return; }
  // Neighbouring threads read neighbouring addresses in either orientation.
  let inBlock = index % PAIRS;
  let isAlongK = params.a_k == 1u;
  let blockRow = select(inBlock % 16u, inBlock / 8u, isAlongK);
  let pair = select(inBlock / 16u, inBlock % 8u, isAlongK);
  let row = block / acrossK * 16u + blockRow;
  let k = block % acrossK * 16u + pair * 2u;
  var values = vec2f();
  if (row < params.m) {
    let at = params.a_offset + row * params.a_row + k * params.a_k;
    if (k < params.k) { values.x = a[at]; }
    if (k + 1u < params.k) { values.y = a[at + params.a_k]; }
    values *= power_for(magnitudes[row]);
  }
  put(block * PAIRS + blockRow * 8u + pair, values);
}
