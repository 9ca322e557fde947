// sample for GPUs: the same results, from what decode/sample_segments and the filters leave of each segment of the vocabulary
// (decode/parts/filter.wgsl). The cumulative sum goes over segments, then over the logits of the one where it passes the target.
// Grid: a workgroup per row.

//#include "parts/tree.wgsl"
//#include "decode/parts/bests.wgsl"
//#include "decode/parts/draw.wgsl"
//#include "head/parts/segments.wgsl"

@group(0) @binding(7) var<storage, read> segments: array<vec4f>;

alias Sum = f32;

var<workgroup> drawn: u32;
var<workgroup> chosen_segment: u32;
var<workgroup> chosen_share: f32;

// Sums of the threads before this one, and of all.
struct Place { below: f32, all: f32 }

fn place_of(lane: u32, own: f32) -> Place {
  shared_sums[lane] = own;
  workgroupBarrier();
  var place = Place(0.0, 0.0);
  for (var i = 0u; i < THREADS; i++) {
    place.below = select(place.below, place.all, i == lane);
    place.all += shared_sums[i];
  }
  workgroupBarrier();
  return place;
}

// What remains of `target_mass` above `below`, as a share of `mass`.
fn share_above(target_mass: f32, below: f32, mass: f32) -> f32 {
  return clamp((target_mass - below) / mass, 0.0, 0.99999994);
}

fn kept_mass(first: u32, i: u32, highest: f32) -> f32 {
  return segments[2u * (first + i) + 1u].x * exp(segments[2u * (first + i)].x - highest);
}

// The segment in which the cumulative sum passes the share, and the share of it there.
fn choose_segment(first: u32, lane: u32, share: f32) {
  let highest = states[0].highest;
  let stretch = (segment_count() + THREADS - 1u) / THREADS;
  let end = min((lane + 1u) * stretch, segment_count());
  var own = 0.0;
  for (var i = lane * stretch; i < end; i++) { own += kept_mass(first, i, highest); }
  let place = place_of(lane, own);
  let target_mass = share * place.all;
  if (own > 0.0 && place.below <= target_mass && target_mass < place.below + own) {
    var below = place.below;
    for (var i = lane * stretch; i < end; i++) {
      let mass = kept_mass(first, i, highest);
      if (mass > 0.0 && below <= target_mass) {
        chosen_segment = i;
        chosen_share = share_above(target_mass, below, mass);
      }
      below += mass;
    }
  }
  workgroupBarrier();
}

// Weights of a vec4 of logits, 0 for those not kept.
fn kept(view: Row, quad: u32, highest: f32, least: f32) -> vec4f {
  let x = logits[view.start + quad];
  let is_kept = used(quad) & (x >= vec4f(least));
  return select(vec4f(), exp(fma(x, vec4f(view.inverse_temperature), vec4f(-highest))), is_kept);
}

// Leaves the id at which the cumulative sum of the chosen segment passes its share.
fn choose_token(view: Row, first: u32, lane: u32) {
  let at = 2u * (first + chosen_segment);
  let highest = segments[at].x;
  let least = segments[at + 1u].y;
  const STRETCH = SEGMENT_QUADS / THREADS;
  let from_quad = chosen_segment * SEGMENT_QUADS + lane * STRETCH;
  let end = min(from_quad + STRETCH, row_quads());
  var own = 0.0;
  for (var quad = from_quad; quad < end; quad++) { own += dot(kept(view, quad, highest, least), vec4f(1.0)); }
  let place = place_of(lane, own);
  let target_mass = chosen_share * place.all;
  if (own > 0.0 && place.below <= target_mass && target_mass < place.below + own) {
    var below = place.below;
    for (var quad = from_quad; quad < end; quad++) {
      let weights = kept(view, quad, highest, least);
      for (var i = 0u; i < 4u; i++) {
        if (weights[i] > 0.0 && below <= target_mass) { drawn = quad * 4u + i; }
        below += weights[i];
      }
    }
  }
}

@compute @workgroup_size(THREADS)
fn main(group: Group, @builtin(local_invocation_index) lane: u32) {
  let index = group_index(group);
  if (index >= params.rows) { return; }
  let row = params.first_row + index;
  let setting = settings[row];
  let first = index * segment_count();
  var own = State(EMPTY, 0.0, 0.0);
  var best = Best(0u, LOWEST);
  for (var i = lane; i < segment_count(); i += THREADS) {
    let segment = segments[2u * (first + i)];
    own = join(own, State(segment.x, segment.y, 0.0));
    best = better(best, Best(u32(segment.w), segment.z));
  }
  join_threads(lane, own);
  join_bests(lane, best);
  if (lane == 0u) {
    drawn = bests[0].id;
    chosen_segment = bests[0].id / (4u * SEGMENT_QUADS);
    chosen_share = 0.0;
  }
  workgroupBarrier();
  let view = Row(index * params.stride / 4u, bests[0].logit, setting.w);
  if (setting.x != 0.0) {
    choose_segment(first, lane, uniform_number(row));
    choose_token(view, first, lane);
    workgroupBarrier();
  }
  if (lane == 0u) {
    keep_token(row, drawn, view, states[0].highest + log(states[0].total));
  }
}
