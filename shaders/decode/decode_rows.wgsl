// A decoding step from a layer's attention to the next layer's, for blocks of 32 rows that need nothing of each other:
//   x += attended O^T;  x += swiglu(norm(x) GateUp^T) Down^T;  qkv = norm'(x) QKV^T
// For CPU drivers whose subgroups are 8 lanes wide: there a dispatch costs as much as its few rows' arithmetic.
//
// matrices: the transposed weights of the layer and of the next, [in, out] each, in vec4, wherever they lie; vectors:
// those of the norms. state holds, row-major, x [rows, C], attended [rows, A], normed [rows, C], wide [rows, 2F]; a
// block touches its own rows alone. Stages `first` to `last` (0 O, 1 GateUp, 2 Down, 3 QKV) are run; where `embeds` is 1, x is first
// read from the embedding table, [V, C] at embed_at of vectors, by tokens [rows].
// Eight lanes read 4 columns of B each and hand them round by broadcast; a lane keeps its 4 rows from one stage to the
// next, so no barrier stands between them: barriers are what such drivers are slowest at.
// Rows [first_row, first_row + rows) are computed. Grid: x = blocks of them, one subgroup each.

enable subgroups;

const LANES = 8u;
const ROWS = 32u;
const BLOCK = 32u;
const QUEUE = 8u;

struct Params {
  rows: u32,
  hidden: u32,
  inner: u32,
  attended: u32,
  qkv: u32,
  // In vec4 of matrices.
  o_at: u32,
  gate_up_at: u32,
  down_at: u32,
  qkv_at: u32,
  // In elements of vectors.
  norm_at: u32,
  next_norm_at: u32,
  // In elements of state.
  x_at: u32,
  attended_at: u32,
  normed_at: u32,
  wide_at: u32,
  first: u32,
  last: u32,
  epsilon: f32,
  embeds: u32,
  // In elements of vectors.
  embed_at: u32,
  first_row: u32,
}

@group(0) @binding(0) var<storage, read> matrices: array<vec4f>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> tokens: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> qkv: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

fn end_row() -> u32 { return params.first_row + params.rows; }

// A lane's four rows of x.
fn embed_rows(row0: u32, lane: u32) {
  for (var row = row0 + lane; row < min(row0 + ROWS, end_row()); row += LANES) {
    let source = params.embed_at + tokens[row] * params.hidden;
    let to = params.x_at + row * params.hidden;
    for (var c = 0u; c < params.hidden; c++) {
      state[to + c] = vectors[source + c];
    }
  }
}

// The same, normed. Sums run in the order of norm/rms_norm.wgsl, so that the bits are the same.
fn norm_rows(row0: u32, lane: u32, weight_at: u32) {
  for (var row = row0 + lane; row < min(row0 + ROWS, end_row()); row += LANES) {
    let source = params.x_at + row * params.hidden;
    let to = params.normed_at + row * params.hidden;
    var squares = vec4f();
    for (var c = 0u; c < params.hidden; c += 4u) {
      let x = vec4f(state[source + c], state[source + c + 1u], state[source + c + 2u], state[source + c + 3u]);
      squares += x * x;
    }
    let mean = dot(squares, vec4f(1.0)) / f32(params.hidden);
    let scale = 1.0 / sqrt(mean + params.epsilon);
    for (var c = 0u; c < params.hidden; c++) {
      state[to + c] = state[source + c] * scale * vectors[weight_at + c];
    }
  }
}

// Over the gates, in place.
fn activate_rows(row0: u32, lane: u32) {
  for (var row = row0 + lane; row < min(row0 + ROWS, end_row()); row += LANES) {
    let at = params.wide_at + row * 2u * params.inner;
    for (var f = 0u; f < params.inner; f++) {
      let gate = state[at + f];
      state[at + f] = gate / (1.0 + exp(-gate)) * state[at + params.inner + f];
    }
  }
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) block: vec3u, @builtin(subgroup_invocation_id) lane: u32) {
  let row0 = params.first_row + block.x * ROWS;
  let last = end_row() - 1u;
  if (params.embeds == 1u) {
    embed_rows(row0, lane);
  }
  for (var stage = params.first; stage < params.last; stage++) {
    var depth = params.hidden;
    var stride = params.hidden;
    var source = params.normed_at;
    var columns = params.hidden;
    var weights = params.o_at;
    var to = params.x_at;
    if (stage == 0u) {
      depth = params.attended;
      stride = params.attended;
      source = params.attended_at;
    } else if (stage == 1u) {
      norm_rows(row0, lane, params.norm_at);
      columns = 2u * params.inner;
      weights = params.gate_up_at;
      to = params.wide_at;
    } else if (stage == 2u) {
      activate_rows(row0, lane);
      depth = params.inner;
      stride = 2u * params.inner;
      source = params.wide_at;
      weights = params.down_at;
    } else {
      norm_rows(row0, lane, params.next_norm_at);
      columns = params.qkv;
      weights = params.qkv_at;
    }
    let width = columns;
    let a0 = source + min(row0 + lane, last) * stride;
    let a1 = source + min(row0 + 8u + lane, last) * stride;
    let a2 = source + min(row0 + 16u + lane, last) * stride;
    let a3 = source + min(row0 + 24u + lane, last) * stride;
    for (var first = 0u; first < columns; first += BLOCK) {
      // Eight lanes read 4 columns each and hand them round; a lane's rows are its own all the way.
      var b0 = weights + min(first / 4u + lane, columns / 4u - 1u);
      var sum0 = vec4f();
      var sum1 = vec4f();
      var sum2 = vec4f();
      var sum3 = vec4f();
      var sum4 = vec4f();
      var sum5 = vec4f();
      var sum6 = vec4f();
      var sum7 = vec4f();
      var sum8 = vec4f();
      var sum9 = vec4f();
      var sum10 = vec4f();
      var sum11 = vec4f();
      var sum12 = vec4f();
      var sum13 = vec4f();
      var sum14 = vec4f();
      var sum15 = vec4f();
      var sum16 = vec4f();
      var sum17 = vec4f();
      var sum18 = vec4f();
      var sum19 = vec4f();
      var sum20 = vec4f();
      var sum21 = vec4f();
      var sum22 = vec4f();
      var sum23 = vec4f();
      var sum24 = vec4f();
      var sum25 = vec4f();
      var sum26 = vec4f();
      var sum27 = vec4f();
      var sum28 = vec4f();
      var sum29 = vec4f();
      var sum30 = vec4f();
      var sum31 = vec4f();
      for (var k = 0u; k < depth; k++) {
        let bk = matrices[b0];
        b0 += columns / 4u;
        let rows = vec4f(state[a0 + k], state[a1 + k], state[a2 + k], state[a3 + k]);
        sum0 += subgroupBroadcast(bk.x, 0u) * rows;
        sum1 += subgroupBroadcast(bk.y, 0u) * rows;
        sum2 += subgroupBroadcast(bk.z, 0u) * rows;
        sum3 += subgroupBroadcast(bk.w, 0u) * rows;
        sum4 += subgroupBroadcast(bk.x, 1u) * rows;
        sum5 += subgroupBroadcast(bk.y, 1u) * rows;
        sum6 += subgroupBroadcast(bk.z, 1u) * rows;
        sum7 += subgroupBroadcast(bk.w, 1u) * rows;
        sum8 += subgroupBroadcast(bk.x, 2u) * rows;
        sum9 += subgroupBroadcast(bk.y, 2u) * rows;
        sum10 += subgroupBroadcast(bk.z, 2u) * rows;
        sum11 += subgroupBroadcast(bk.w, 2u) * rows;
        sum12 += subgroupBroadcast(bk.x, 3u) * rows;
        sum13 += subgroupBroadcast(bk.y, 3u) * rows;
        sum14 += subgroupBroadcast(bk.z, 3u) * rows;
        sum15 += subgroupBroadcast(bk.w, 3u) * rows;
        sum16 += subgroupBroadcast(bk.x, 4u) * rows;
        sum17 += subgroupBroadcast(bk.y, 4u) * rows;
        sum18 += subgroupBroadcast(bk.z, 4u) * rows;
        sum19 += subgroupBroadcast(bk.w, 4u) * rows;
        sum20 += subgroupBroadcast(bk.x, 5u) * rows;
        sum21 += subgroupBroadcast(bk.y, 5u) * rows;
        sum22 += subgroupBroadcast(bk.z, 5u) * rows;
        sum23 += subgroupBroadcast(bk.w, 5u) * rows;
        sum24 += subgroupBroadcast(bk.x, 6u) * rows;
        sum25 += subgroupBroadcast(bk.y, 6u) * rows;
        sum26 += subgroupBroadcast(bk.z, 6u) * rows;
        sum27 += subgroupBroadcast(bk.w, 6u) * rows;
        sum28 += subgroupBroadcast(bk.x, 7u) * rows;
        sum29 += subgroupBroadcast(bk.y, 7u) * rows;
        sum30 += subgroupBroadcast(bk.z, 7u) * rows;
        sum31 += subgroupBroadcast(bk.w, 7u) * rows;
      }
      // The sums leave one column at a time, as a queue of eight that the others refill (matmul/parts/lanes.wgsl says why).
      let end = min(first + BLOCK, columns);
      for (var next = first; next < end; next += QUEUE) {
        for (var column = next; column < min(next + QUEUE, end); column++) {
          for (var group = 0u; group < 4u; group++) {
            let row = row0 + group * LANES + lane;
            if (row < end_row()) {
              let at = row * width + column;
              if (stage == 3u) {
                qkv[at] = sum0[group];
              } else if (stage == 1u) {
                state[to + at] = sum0[group];
              } else {
                state[to + at] += sum0[group];
              }
            }
          }
          sum0 = sum1;
          sum1 = sum2;
          sum2 = sum3;
          sum3 = sum4;
          sum4 = sum5;
          sum5 = sum6;
          sum6 = sum7;
        }
        sum0 = sum8;
        sum1 = sum9;
        sum2 = sum10;
        sum3 = sum11;
        sum4 = sum12;
        sum5 = sum13;
        sum6 = sum14;
        sum7 = sum15;
        sum8 = sum16;
        sum9 = sum17;
        sum10 = sum18;
        sum11 = sum19;
        sum12 = sum20;
        sum13 = sum21;
        sum14 = sum22;
        sum15 = sum23;
        sum16 = sum24;
        sum17 = sum25;
        sum18 = sum26;
        sum19 = sum27;
        sum20 = sum28;
        sum21 = sum29;
        sum22 = sum30;
        sum23 = sum31;
      }
    }
  }
}
