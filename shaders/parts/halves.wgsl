// The loop of a sum by halves: for (var half = THREADS / 2u; half > 0u; half = next_half(half)).

// half / 2, where half is a power of two. Mesa does not see through this form. It would unroll a loop by half / 2, and its
// CPU driver takes most of a second to compile each turn with its barrier.
fn next_half(half: u32) -> u32 {
  return half - (half + 1u) / 2u;
}
