// A product by itself, for kernels that can also take over those around it (matmul/parts/fused).
//#include "matmul/parts/params.wgsl"

fn prepare_rows(row0: u32, thread: u32) {}

// The vec4 of A at 4 at.
fn read_a(local_row: u32, quad: u32, at: u32) -> vec4f {
  return a[at];
}

fn with_adapter(sum: f32, row: u32, column: u32) -> f32 {
  return sum;
}

fn store_adapted(row: u32, column: u32, sum: f32) {
  store(row, column, sum);
}
