// The work of matmul/magnitudes, by a kernel that defines read_element(at).

const ROWS = 16u;
const LANES = 16u;
const STEP = 256u;

struct Params { rows: u32, k: u32, offset: u32, row: u32, along_k: u32 }

@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> largest: array<atomic<u32>, ROWS>;

struct Place {
  @builtin(workgroup_id) block: vec3u,
  @builtin(num_workgroups) blocks: vec3u,
  @builtin(local_invocation_index) thread: u32,
}

@compute @workgroup_size(256)
fn main(it: Place) {
  // Neighbouring threads read neighbouring addresses in either orientation.
  let isAlongK = params.along_k == 1u;
  let own = select(it.thread % ROWS, it.thread / LANES, isAlongK);
  let lane = select(it.thread / ROWS, it.thread % LANES, isAlongK);
  let row = (it.block.z * it.blocks.y + it.block.y) * ROWS + own;
  var bits = 0u;
  if (row < params.rows) {
    let first = it.block.x * STEP + lane;
    let end = min(it.block.x * STEP + STEP, params.k);
    let at = params.offset + row * params.row;
    for (var k = first; k < end; k += LANES) {
      // As integers, because these order NaN above infinity.
      bits = max(bits, bitcast<u32>(read_element(at + k * params.along_k)) & 0x7fffffffu);
    }
  }
  atomicMax(&largest[own], bits);
  workgroupBarrier();
  let written = (it.block.z * it.blocks.y + it.block.y) * ROWS + it.thread;
  if (it.thread < ROWS && written < params.rows) {
    atomicMax(&magnitudes[written], atomicLoad(&largest[it.thread]));
  }
}
