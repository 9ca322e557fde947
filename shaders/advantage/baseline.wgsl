// A_t = (G_t - b_t) m_t with the group's baseline of the column, b = sum G W / (sum W + 1e-8) over its trained rows.
// Sums run over distances from the column's first return, so that equal returns do not cancel.
// The row that is longest alone keeps no baseline from the second longest's count on (ZERO_TAIL). Alone: b = 0.
// Grid: one invocation per group, striding.

const THREADS = 64u;
const NO_ROW = 0xffffffffu;
const NO_TOKEN = 0xffffffffu;

override COMPACT: bool = false;
override ZERO_TAIL: bool = true;

struct Params { groups: u32 }

@group(0) @binding(0) var<storage, read> group_offsets: array<u32>;
@group(0) @binding(1) var<storage, read> members: array<u32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> mask: array<u32>;
@group(0) @binding(4) var<storage, read> columns: array<u32>;
@group(0) @binding(5) var<storage, read> power: array<f32>;
@group(0) @binding(6) var<storage, read_write> returns: array<f32>;
@group(0) @binding(7) var<storage, read_write> advantages: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

// The trained token of a row in a column, if there is one.
fn token_at(row: u32, column: u32) -> u32 {
  if (column >= offsets[row + 1u] - offsets[row]) { return NO_TOKEN; }
  let t = columns[offsets[row] + column];
  if (t == NO_TOKEN || mask[t] == 0u) { return NO_TOKEN; }
  return t;
}

fn trained_count(row: u32) -> u32 {
  var n = 0u;
  for (var t = offsets[row]; t < offsets[row + 1u]; t++) { n += select(0u, 1u, mask[t] != 0u); }
  return n;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  for (var group = id.x; group < params.groups; group += groups.x * THREADS) {
    let first = group_offsets[group];
    let end = group_offsets[group + 1u];
    var longest = 0u;
    var second = 0u;
    var lonely = NO_ROW;
    var filled = 0u;
    var columns_end = 0u;
    for (var k = first; k < end; k++) {
      let row = members[k];
      let n = trained_count(row);
      filled += select(0u, 1u, n > 0u || !COMPACT);
      columns_end = max(columns_end, select(offsets[row + 1u] - offsets[row], n, COMPACT));
      if (n > longest || k == first) {
        second = select(longest, 0u, k == first);
        longest = n;
        lonely = row;
      } else {
        if (n == longest) { lonely = NO_ROW; }
        second = max(second, n);
      }
    }
    for (var column = 0u; column < columns_end; column++) {
      var weighted = 0.0;
      var weight = 1e-8;
      var shift = 0.0;
      var found = false;
      for (var k = first; k < end; k++) {
        let row = members[k];
        let t = token_at(row, column);
        if (t == NO_TOKEN) { continue; }
        if (!found) { shift = returns[t]; }
        found = true;
        weighted += (returns[t] - shift) * power[t];
        weight += power[t];
      }
      let baseline = select(shift + (weighted - shift * 1e-8) / weight, 0.0, filled < 2u);
      for (var k = first; k < end; k++) {
        let row = members[k];
        let t = token_at(row, column);
        if (t == NO_TOKEN) { continue; }
        let tail = ZERO_TAIL && filled > 1u && row == lonely && column >= second;
        advantages[t] = returns[t] - select(baseline, 0.0, tail);
      }
    }
  }
}
