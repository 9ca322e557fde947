// A kernel's Params hold `window`, the number of keys that a row sees at most, its own among them.

// The first position that the row at `position` sees.
fn first_seen(position: u32) -> u32 {
  return position + 1u - min(position + 1u, params.window);
}
