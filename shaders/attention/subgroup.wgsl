// attention for CPU drivers whose subgroups are 8 lanes wide: the same bindings, params and results.
//
// Such drivers issue every storage load lane by lane. So each of 8 lanes (queries of one head) loads another of 8
// neighbouring keys, and the keys go round by shuffles (broadcasts are slower). A token takes its keys one after another,
// each as decode/attention_decode.wgsl does: where a sequence lies, or whether its keys are cached, changes no bit.
// Grid: a workgroup of one subgroup per (8 tokens, head), a thread per token.

enable subgroups;

//#include "attention/parts/forward.wgsl"
//#include "attention/parts/lanes.wgsl"

override GRID_HEADS: u32 = HEADS;
// Loops to HEAD_QUADS unroll, and what they do not touch is dropped.
const MAX_QUADS = 64u;

fn attend(queries: Block, own: u32, lane: u32) {
  let block = among_keys(queries);
  let token = own + params.first;
  let head = block.head * HEADS;
  let start = first_key(token);
  let shared_at = shared_start(head);
  let q_at = q_start(own, head * HEAD_QUADS);
  var query: array<vec4f, MAX_QUADS>;
  var sum: array<vec4f, MAX_QUADS>;
  for (var d = 0u; d < HEAD_QUADS * HEADS; d++) {
    query[d] = q[q_at + d] * (params.scale * LOG2_E);
  }
  var highest = vec2f(LOWEST);
  var total = vec2f();
  for (var key = first_key(block.first); key <= block.last; key += LANES) {
    let own_key = min(key + lane, block.last);
    let k_at = k_start(own_key, shared_at);
    let v_at = v_start(own_key, shared_at);
    // Spelt out: Dawn on lavapipe does not clear an array declared in a loop without a value.
    var score = array(vec4f(), vec4f(), vec4f(), vec4f());
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let keys = of_lanes(k[k_at + d]);
      for (var h = 0u; h < HEADS; h++) {
        let part = query[h * HEAD_QUADS + d];
        score[h * 2u] += low_dots(part, keys);
        score[h * 2u + 1u] += high_dots(part, keys);
      }
    }
    // One comparison for start <= key <= token: what is below the start wraps to a large number.
    let low_seen = vec4u(key - start) + LOW <= vec4u(token - start);
    let high_seen = vec4u(key - start) + HIGH <= vec4u(token - start);
    // What each key leaves of the sum before it. Scores become weights.
    var keep = array(vec4f(1.0), vec4f(1.0), vec4f(1.0), vec4f(1.0));
    for (var h = 0u; h < HEADS; h++) {
      for (var part = 0u; part < 2u; part++) {
        let seen = select(high_seen, low_seen, vec4<bool>(part == 0u));
        let all = score[h * 2u + part];
        var before = vec4f(highest[h]);
        before.y = select(before.x, max(before.x, all.x), seen.x);
        before.z = select(before.y, max(before.y, all.y), seen.y);
        before.w = select(before.z, max(before.z, all.z), seen.z);
        highest[h] = select(before.w, max(before.w, all.w), seen.w);
        // Of exp2(highest - higher) and exp2(score - higher), one is 1.
        let falls = exp2(-abs(all - before));
        let rises = all > before;
        let own_keep = select(vec4f(1.0), falls, rises & seen);
        let weight = select(vec4f(), select(falls, vec4f(1.0), rises), seen);
        total[h] = total[h] * own_keep.x + weight.x;
        total[h] = total[h] * own_keep.y + weight.y;
        total[h] = total[h] * own_keep.z + weight.z;
        total[h] = total[h] * own_keep.w + weight.w;
        keep[h * 2u + part] = own_keep;
        score[h * 2u + part] = weight;
      }
    }
    for (var d = 0u; d < HEAD_QUADS; d++) {
      let values = of_lanes(v[v_at + d]);
      for (var h = 0u; h < HEADS; h++) {
        let low = score[h * 2u];
        let high = score[h * 2u + 1u];
        let low_keep = keep[h * 2u];
        let high_keep = keep[h * 2u + 1u];
        var joined = sum[h * HEAD_QUADS + d];
        joined = joined * low_keep.x + low.x * values[0];
        joined = joined * low_keep.y + low.y * values[1];
        joined = joined * low_keep.z + low.z * values[2];
        joined = joined * low_keep.w + low.w * values[3];
        joined = joined * high_keep.x + high.x * values[4];
        joined = joined * high_keep.y + high.y * values[5];
        joined = joined * high_keep.z + high.z * values[6];
        joined = joined * high_keep.w + high.w * values[7];
        sum[h * HEAD_QUADS + d] = joined;
      }
    }
  }
  if (block.first + lane > block.last) { return; }
  for (var h = 0u; h < HEADS; h++) {
    let row = own * params.heads + head + h;
    for (var d = 0u; d < HEAD_QUADS; d++) {
      result[row * HEAD_QUADS + d] = sum[h * HEAD_QUADS + d] / total[h];
    }
    statistics[row * 2u] = highest[h] / LOG2_E + log(total[h]);
  }
}
