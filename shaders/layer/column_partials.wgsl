// partials[b, c] = sum over the rows of block b of x[row, c]. x [rows, width].

//#include "parts/row_blocks.wgsl"

struct Params { rows: u32, width: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> partials: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

fn row_term(row: u32, quad: u32) -> vec4f { return x[row * (params.width / 4u) + quad]; }

fn partials_at(block: u32, quad: u32) -> u32 { return block * (params.width / 4u) + quad; }
