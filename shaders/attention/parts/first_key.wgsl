// Where the keys of a token begin. A kernel binds sequence_start, and its Params hold `window`.

// The first key that a token attends to: `window` tokens back, itself included, or its sequence's first.
fn first_key(token: u32) -> u32 {
  let start = sequence_start[token];
  let all = token - start + 1u;
  return start + all - min(all, params.window);
}
