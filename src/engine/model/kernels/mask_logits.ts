/** Hides the logits of tokens that may not come next. */
import { defineKernel } from "../../compute/kernel.ts";
import { quads, THREADS, threads } from "./rows.ts";

/** Its weight is 0 at any temperature, and its product with the inverse temperature is finite. */
const FORBIDDEN = -1e30;

/**
 * masked[r, i] = logits[r, i] where bit i % 32 of masks[r, floor(i / 32)] is set, and -1e30 elsewhere. logits and masked
 * [rows, stride], masks [rows, words]; words * 32 is at least stride.
 */
export const maskLogits = defineKernel({
  name: "decode/mask_logits",
  bindings: { logits: "read f32", masks: "read u32", masked: "write f32" },
  params: { rows: "u32", stride: "u32", words: "u32" },
  constants: THREADS,
  grid: ({ rows, stride }, constants) => threads(rows * quads(stride, "stride"), constants),
  reference({ logits, masks, masked }, { rows, stride, words }) {
    for (let i = 0; i < rows * stride; i++) {
      const row = Math.floor(i / stride);
      const token = i - row * stride;
      const isAllowed = ((masks[row * words + (token >> 5)]! >>> (token & 31)) & 1) === 1;
      masked[i] = isAllowed ? logits[i]! : FORBIDDEN;
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});
