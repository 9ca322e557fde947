// The matrix units of a subgroup: f16 inputs, f32 sums, 16 x 16 x 16. A kernel enables f16, subgroups and
// chromium_experimental_subgroup_matrix, and defines three arrays: `a` and `b_tile` of Element, which are multiplied in blocks of
// 16 x 16, and `staged` of f32, which takes results.
// Every function must be called by whole subgroups, at a place that is the same for all lanes.
// A kernel includes nothing else of the extension, so that a test on an adapter without it replaces this file alone.

alias Element = f16;
// Elements of 16 bytes.
const PADDING = 8u;

alias Left = subgroup_matrix_left<f16, 16, 16>;
alias Right = subgroup_matrix_right<f16, 16, 16>;
alias Sums = subgroup_matrix_result<f32, 16, 16>;

struct Lane {
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
}

fn subgroup_of(lane: Lane) -> u32 {
  return lane.subgroup;
}

// Row by row, 16 apart.
fn load_left(at: u32) -> Left {
  return subgroupMatrixLoad<Left, row_major>(&a, at, 16u);
}

// Row by row of k, `stride` apart.
fn load_right(at: u32, stride: u32) -> Right {
  return subgroupMatrixLoad<Right, row_major>(&b_tile, at, stride);
}

// Column by column, `stride` apart.
fn load_right_columns(at: u32, stride: u32) -> Right {
  return subgroupMatrixLoad<Right, col_major>(&b_tile, at, stride);
}

fn multiply_add(left: Left, right: Right, sums: Sums) -> Sums {
  return subgroupMatrixMultiplyAccumulate(left, right, sums);
}

// Row by row, `stride` apart.
fn stage_sums(at: u32, sums: Sums, stride: u32) {
  subgroupMatrixStore<row_major>(&staged, at, sums, stride);
}
