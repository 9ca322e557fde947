// result[t, :] = table[tokens[t], :]. tokens [T], result [T, width] in vec4s. `table` binds rows [first_row, first_row +
// row_count); tokens outside leave the result as it is.
// Grid: a thread per vec4 of the result.

//#include "layer/parts/embedding.wgsl"

alias Table = vec4f;

fn read_table(at: u32) -> vec4f {
  return table[at];
}
