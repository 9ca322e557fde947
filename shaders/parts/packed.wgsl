// Elements of a packed matrix. FORMAT says how they lie, as `compute/packed.ts` has it.
// A kernel defines packed_word(at) and, for blocks of 64 elements, packed_scale(block). It includes parts/nf4_select.wgsl or
// parts/nf4_shuffle.wgsl, which find levels.

override FORMAT: u32 = 1u;

const BFLOAT16 = 1u;
const INT8 = 2u;
const NF4 = 3u;
const BLOCK = 64u;

const NF4_LEVELS = array<f32, 16>(
  -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
  -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
  0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
  0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
);

fn packed_value(at: u32) -> f32 {
  if (FORMAT == BFLOAT16) {
    let pair = packed_word(at / 2u);
    return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, at % 2u == 1u));
  }
  let scale = packed_scale(at / BLOCK);
  if (FORMAT == INT8) {
    return f32(extractBits(bitcast<i32>(packed_word(at / 4u)), at % 4u * 8u, 8u)) * scale;
  }
  // Two in a byte, the even one in the high half.
  let code = extractBits(packed_word(at / 8u), ((at % 8u) ^ 1u) * 4u, 4u);
  return nf4_levels(vec4u(code)).x * scale;
}

// The four elements from 4 at on.
fn packed_quad(at: u32) -> vec4f {
  if (FORMAT == BFLOAT16) {
    let low = packed_word(at * 2u);
    let high = packed_word(at * 2u + 1u);
    return bitcast<vec4f>(vec4u(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
  }
  let scale = packed_scale(at * 4u / BLOCK);
  if (FORMAT == INT8) {
    let word = bitcast<i32>(packed_word(at));
    return vec4f(vec4i(word << 24u, word << 16u, word << 8u, word) >> vec4u(24u)) * scale;
  }
  let word = packed_word(at / 2u) >> (at % 2u * 16u);
  let codes = (vec4u(word) >> vec4u(4u, 0u, 12u, 8u)) & vec4u(15u);
  return nf4_levels(codes) * scale;
}
