// A as it lies in its buffer.

fn prepare_rows(row0: u32, thread: u32) {}

// The vec4 of A at 4 at.
fn read_a(local_row: u32, quad: u32, at: u32) -> vec4f {
  return a[at];
}
