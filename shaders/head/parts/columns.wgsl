// Columns of a vec4 of logits.

fn columns_of(quad: u32) -> vec4u {
  return vec4u(quad * 4u) + vec4u(0u, 1u, 2u, 3u);
}
