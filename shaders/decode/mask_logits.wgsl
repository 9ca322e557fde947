// masked[r, i] = logits[r, i] where bit i % 32 of masks[r, i / 32] is set, and FORBIDDEN elsewhere.
// logits, masked [rows, stride] in vec4s; masks [rows, words]. Grid: a thread per vec4.

//#include "parts/threads.wgsl"

struct Params { rows: u32, stride: u32, words: u32 }

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> masks: array<u32>;
@group(0) @binding(2) var<storage, read_write> masked: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

// Its weight is 0 at any temperature, and its product with the inverse temperature is finite.
const FORBIDDEN = vec4f(-1e30);

fn compute_thread(index: u32) {
  let quads = params.stride / 4u;
  if (index < params.rows * quads) {
    let row = index / quads;
    let first = (index - row * quads) * 4u;
    let bits = masks[row * params.words + first / 32u] >> (first % 32u);
    let allowed = (vec4u(bits) & vec4u(1u, 2u, 4u, 8u)) != vec4u(0u);
    masked[index] = select(FORBIDDEN, logits[index], allowed);
  }
}
