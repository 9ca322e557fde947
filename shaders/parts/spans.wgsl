// A stream divided over a fixed number of workgroups, GROUPS of THREADS, whatever its length: sums are added in the same
// order on every device. LANES neighbouring threads walk one contiguous span together. A span per thread would not
// coalesce on a GPU; one span for all touches a new page of every stream at each step of a software GPU (3 times slower).
// A kernel defines THREADS, GROUPS and LANES, and steps from `first` to below `end` by LANES.

struct Span { first: u32, end: u32 }

fn span_of(thread: u32, count: u32) -> Span {
  let length = (count + THREADS * GROUPS - 1u) / (THREADS * GROUPS) * LANES;
  let start = thread / LANES * length;
  return Span(start + thread % LANES, min(start + length, count));
}
