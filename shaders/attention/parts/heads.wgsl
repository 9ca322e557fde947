// Heads of D = 4 HEAD_QUADS in packed tokens. The kernel's Params hold a stride and an offset per token for q, k and v.

//#include "attention/parts/softmax.wgsl"

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;

override HEAD_QUADS: u32 = 2u;

// The first vec4 of a head of a token; `within` is where the head lies among the token's. Adding a number that was computed
// before a loop keeps the division in shared_start out of it: CPU drivers take 1.4 times as long otherwise.
fn q_start(token: u32, within: u32) -> u32 {
  return (token * params.q_stride + params.q_offset) / 4u + within;
}

fn k_start(token: u32, within: u32) -> u32 {
  return (token * params.k_stride + params.k_offset) / 4u + within;
}

fn v_start(token: u32, within: u32) -> u32 {
  return (token * params.v_stride + params.v_offset) / 4u + within;
}

// Of four tokens.
fn four_keys(tokens: vec4u, within: u32) -> vec4u {
  return (tokens * params.k_stride + params.k_offset) / 4u + within;
}

fn four_values(tokens: vec4u, within: u32) -> vec4u {
  return (tokens * params.v_stride + params.v_offset) / 4u + within;
}

// Where the key head of a query head lies.
fn shared_start(head: u32) -> u32 {
  return head * params.key_heads / params.heads * HEAD_QUADS;
}

// A workgroup's part: some neighbouring tokens, first to last, of one head. They walk the same keys and share the loads.
struct Block { head: u32, first: u32, last: u32 }

fn block_of(index: u32, heads: u32, tokens: u32) -> Block {
  let block = index / heads;
  let first = block * tokens;
  return Block(index - block * heads, first, min(first + tokens, params.tokens) - 1u);
}
