// parts/matrix_units_f16.wgsl for units that multiply f32, 8 x 8 x 8: a block of 16 x 16 is four of theirs.

alias Element = f32;
// Elements of 16 bytes.
const PADDING = 4u;

alias UnitLeft = subgroup_matrix_left<f32, 8, 8>;
alias UnitRight = subgroup_matrix_right<f32, 8, 8>;
alias UnitSums = subgroup_matrix_result<f32, 8, 8>;

// The quarters of a block, row by row.
struct Left { q0: UnitLeft, q1: UnitLeft, q2: UnitLeft, q3: UnitLeft }
struct Right { q0: UnitRight, q1: UnitRight, q2: UnitRight, q3: UnitRight }
struct Sums { q0: UnitSums, q1: UnitSums, q2: UnitSums, q3: UnitSums }

struct Lane {
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
}

fn subgroup_of(lane: Lane) -> u32 {
  return lane.subgroup;
}

fn load_left(at: u32) -> Left {
  return Left(
    subgroupMatrixLoad<UnitLeft, row_major>(&a, at, 16u),
    subgroupMatrixLoad<UnitLeft, row_major>(&a, at + 8u, 16u),
    subgroupMatrixLoad<UnitLeft, row_major>(&a, at + 128u, 16u),
    subgroupMatrixLoad<UnitLeft, row_major>(&a, at + 136u, 16u),
  );
}

fn load_right(at: u32, stride: u32) -> Right {
  return Right(
    subgroupMatrixLoad<UnitRight, row_major>(&b_tile, at, stride),
    subgroupMatrixLoad<UnitRight, row_major>(&b_tile, at + 8u, stride),
    subgroupMatrixLoad<UnitRight, row_major>(&b_tile, at + 8u * stride, stride),
    subgroupMatrixLoad<UnitRight, row_major>(&b_tile, at + 8u * stride + 8u, stride),
  );
}

fn load_right_columns(at: u32, stride: u32) -> Right {
  return Right(
    subgroupMatrixLoad<UnitRight, col_major>(&b_tile, at, stride),
    subgroupMatrixLoad<UnitRight, col_major>(&b_tile, at + 8u * stride, stride),
    subgroupMatrixLoad<UnitRight, col_major>(&b_tile, at + 8u, stride),
    subgroupMatrixLoad<UnitRight, col_major>(&b_tile, at + 8u * stride + 8u, stride),
  );
}

fn multiply_add(left: Left, right: Right, sums: Sums) -> Sums {
  return Sums(
    add_both(left.q0, right.q0, left.q1, right.q2, sums.q0),
    add_both(left.q0, right.q1, left.q1, right.q3, sums.q1),
    add_both(left.q2, right.q0, left.q3, right.q2, sums.q2),
    add_both(left.q2, right.q1, left.q3, right.q3, sums.q3),
  );
}

fn add_both(left0: UnitLeft, right0: UnitRight, left1: UnitLeft, right1: UnitRight, sums: UnitSums) -> UnitSums {
  return subgroupMatrixMultiplyAccumulate(left1, right1, subgroupMatrixMultiplyAccumulate(left0, right0, sums));
}

fn stage_sums(at: u32, sums: Sums, stride: u32) {
  subgroupMatrixStore<row_major>(&staged, at, sums.q0, stride);
  subgroupMatrixStore<row_major>(&staged, at + 8u, sums.q1, stride);
  subgroupMatrixStore<row_major>(&staged, at + 8u * stride, sums.q2, stride);
  subgroupMatrixStore<row_major>(&staged, at + 8u * stride + 8u, sums.q3, stride);
}
