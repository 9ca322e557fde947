// Levels of nf4 where subgroups are 8 lanes wide: each lane holds two of them, and shuffles fetch them.

var<private> own_levels: vec2f;

fn hold_levels(lane: u32) {
  own_levels = vec2f(NF4_LEVELS[lane], NF4_LEVELS[lane + 8u]);
}

fn nf4_levels(codes: vec4u) -> vec4f {
  let lanes = codes & vec4u(7u);
  return select(fetch_levels(own_levels.x, lanes), fetch_levels(own_levels.y, lanes), codes > vec4u(7u));
}

fn fetch_levels(own: f32, lanes: vec4u) -> vec4f {
  return vec4f(
    subgroupShuffle(own, lanes.x),
    subgroupShuffle(own, lanes.y),
    subgroupShuffle(own, lanes.z),
    subgroupShuffle(own, lanes.w),
  );
}
