/** Carries tokens that were drawn on the device into the rows of the next chunk of steps. */
import { defineKernel } from "../../compute/kernel.ts";
import { THREADS, threads } from "./rows.ts";

/** next[r] = previous[sources[r]] for each row r. */
export const gatherTokens = defineKernel({
  name: "decode/gather_tokens",
  bindings: { sources: "read u32", previous: "read u32", next: "write u32" },
  params: { rows: "u32" },
  constants: THREADS,
  grid: ({ rows }, constants) => threads(rows, constants),
  reference({ sources, previous, next }, { rows }) {
    for (let row = 0; row < rows; row++) next[row] = previous[sources[row]!]!;
  },
  tolerance: { relative: 0, absolute: 0 },
});
