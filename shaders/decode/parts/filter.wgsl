// What precedes a draw on GPUs, by a workgroup per (row, segment): parameters, and what is kept of each segment.
// segments [rows, segments, 2]: {highest logit / temperature, sum of exp(x - highest), best logit, its id},
// {the same sum over the logits that filters keep, the smallest of these}.
//#include "decode/parts/sampling.wgsl"
//#include "head/parts/segments.wgsl"

struct Params { rows: u32, first_row: u32, vocabulary: u32, stride: u32, step: u32 }

@group(0) @binding(0) var<storage, read> logits: array<vec4f>;
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> segments: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;
