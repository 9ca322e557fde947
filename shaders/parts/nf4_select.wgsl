// Levels of nf4 by a tree of selections: a table indexed by a variable lies in memory on most drivers.

fn nf4_levels(codes: vec4u) -> vec4f {
  let bit0 = (codes & vec4u(1u)) != vec4u();
  let bit1 = (codes & vec4u(2u)) != vec4u();
  let bit2 = (codes & vec4u(4u)) != vec4u();
  let bit3 = (codes & vec4u(8u)) != vec4u();
  let a0 = select(vec4f(NF4_LEVELS[0]), vec4f(NF4_LEVELS[1]), bit0);
  let a1 = select(vec4f(NF4_LEVELS[2]), vec4f(NF4_LEVELS[3]), bit0);
  let a2 = select(vec4f(NF4_LEVELS[4]), vec4f(NF4_LEVELS[5]), bit0);
  let a3 = select(vec4f(NF4_LEVELS[6]), vec4f(NF4_LEVELS[7]), bit0);
  let a4 = select(vec4f(NF4_LEVELS[8]), vec4f(NF4_LEVELS[9]), bit0);
  let a5 = select(vec4f(NF4_LEVELS[10]), vec4f(NF4_LEVELS[11]), bit0);
  let a6 = select(vec4f(NF4_LEVELS[12]), vec4f(NF4_LEVELS[13]), bit0);
  let a7 = select(vec4f(NF4_LEVELS[14]), vec4f(NF4_LEVELS[15]), bit0);
  let low = select(select(a0, a1, bit1), select(a2, a3, bit1), bit2);
  let high = select(select(a4, a5, bit1), select(a6, a7, bit1), bit2);
  return select(low, high, bit3);
}
