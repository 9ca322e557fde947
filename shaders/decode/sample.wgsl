// Draws a token per row of logits, and its log-probability under softmax(logits / temperature).
// settings [rows, 4] = temperature (0: greedy, lowest id of equals), top_p (off from 1), top_k (off at 0), and
// 1 / temperature (1: greedy). The log-probability comes as in head/logprob.wgsl, so that both have the same bits.
// top-k, then top-p on what is left, by the smallest logit kept: the largest key that enough of the count or the mass
// reaches, found two bits of the ordered float at a time. Ties with it are kept. Then the inverse of the cumulative sum
// at a Philox 2x32-10 number of (seed, position + shift). Results: next [rows], histories [rows, history_stride] at shift.
// logits [rows, stride]; the other buffers start at first_row. Grid: a thread per row.

//#include "decode/parts/draw.wgsl"
//#include "parts/rows.wgsl"

fn find_best(local_row: u32) -> Best {
  let start = local_row * params.stride / 4u;
  var best = Best(0u, LOWEST);
  for (var quad = 0u; quad * 4u < params.vocabulary; quad++) {
    best = best_with(best, quad, logits[start + quad]);
  }
  return best;
}

// Sums over logits whose key reaches each of three keys and the floor: of exp((x - highest) / temperature), or of 1.
fn mass(row: Row, keys: vec3u, floor_key: u32, counting: bool) -> vec3f {
  var sums = array(vec4f(), vec4f(), vec4f());
  for (var quad = 0u; quad * 4u < params.vocabulary; quad++) {
    let x = logits[row.start + quad];
    let key = ordered(x);
    let counted = used(quad) & (key >= vec4u(floor_key));
    let weights = select(exp((x - row.highest) * row.inverse_temperature), vec4f(1.0), counting);
    for (var i = 0u; i < 3u; i++) {
      sums[i] += select(vec4f(), weights, counted & (key >= vec4u(keys[i])));
    }
  }
  return vec3f(dot(sums[0], vec4f(1.0)), dot(sums[1], vec4f(1.0)), dot(sums[2], vec4f(1.0)));
}

// log sum exp(logits / temperature), by the steps of head/logprob.wgsl.
fn log_sum_exp(start: u32, inverse_temperature: f32) -> f32 {
  let full = params.vocabulary / 16u * 4u;
  var state = vec2f(-1e30, 0.0);
  for (var quad = 0u; quad < full; quad += 4u) {
    state = absorb(state, array(
      logits[start + quad] * inverse_temperature,
      logits[start + quad + 1u] * inverse_temperature,
      logits[start + quad + 2u] * inverse_temperature,
      logits[start + quad + 3u] * inverse_temperature,
    ));
  }
  let none = vec4f(-1e30);
  for (var quad = full; quad * 4u < params.vocabulary; quad++) {
    let x = select(none, logits[start + quad] * inverse_temperature, used(quad));
    state = absorb(state, array(x, none, none, none));
  }
  return state.x + log(state.y);
}

// The highest x so far and the sum of exp(x - highest), with sixteen more.
fn absorb(state: vec2f, x: array<vec4f, 4>) -> vec2f {
  let most = max(max(x[0], x[1]), max(x[2], x[3]));
  let highest = max(max(max(most.x, most.y), max(most.z, most.w)), state.x);
  var totals = vec4f();
  for (var i = 0u; i < 4u; i++) {
    totals += exp(x[i] - highest);
  }
  return vec2f(highest, state.y * exp(state.x - highest) + dot(totals, vec4f(1.0)));
}

// The first id at which the cumulative sum passes the target; the last id kept where rounding hides it.
fn draw(row: Row, least: u32, target_mass: f32, best: u32) -> u32 {
  var below = 0.0;
  var last = best;
  for (var quad = 0u; quad * 4u < params.vocabulary; quad++) {
    let x = logits[row.start + quad];
    let kept = used(quad) & (ordered(x) >= vec4u(least));
    let weights = exp((x - row.highest) * row.inverse_temperature);
    for (var i = 0u; i < 4u; i++) {
      if (kept[i] && weights[i] > 0.0) {
        last = quad * 4u + i;
        below += weights[i];
        if (below > target_mass) {
          return last;
        }
      }
    }
  }
  return last;
}

// The largest key such that the logits that reach it sum to at least `enough`.
fn find_least(row: Row, floor_key: u32, enough: f32, counting: bool) -> u32 {
  var key = 0u;
  for (var place = 32u; place > 0u;) {
    place -= 2u;
    let candidates = vec3u(key) + (vec3u(1u, 2u, 3u) << vec3u(place));
    let reached = mass(row, candidates, floor_key, counting) >= vec3f(enough);
    key = select(select(select(key, candidates.x, reached.x), candidates.y, reached.y), candidates.z, reached.z);
  }
  return key;
}

// The smallest key that top-k, then top-p keep.
fn least_kept(row: Row, top_k: f32, top_p: f32) -> u32 {
  var least = 0u;
  if (top_k > 0.0 && u32(top_k) < params.vocabulary) {
    least = find_least(row, 0u, f32(u32(top_k)), true);
  }
  if (top_p < 1.0) {
    let target_mass = top_p * mass(row, vec3u(), least, false).x;
    least = max(least, min(find_least(row, least, target_mass, false), ordered(vec4f(row.highest)).x));
  }
  return least;
}

fn compute_row(index: u32) {
  let row = params.first_row + index;
  let setting = settings[row];
  let greedy = setting.x == 0.0;
  let best = find_best(index);
  let view = Row(index * params.stride / 4u, best.logit, setting.w);
  var token = best.id;
  if (!greedy) {
    let least = least_kept(view, setting.z, setting.y);
    token = draw(view, least, uniform_number(row) * mass(view, vec3u(), least, false).x, best.id);
  }
  keep_token(row, token, view, log_sum_exp(view.start, view.inverse_temperature));
}
