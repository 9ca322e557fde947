/** Tokens carried from the rows of one chunk to those of the next. */
import { expect, test } from "vitest";
import { gatherTokens } from "../../../../src/engine/model/kernels/gather_tokens.ts";
import { integers, runOnBoth, useDevices } from "./run.ts";

const devices = useDevices();

// The last folds its grid over y.
test.each([0, 1, 3, 65, 65_536 * 64])("%i rows take the tokens of their sources", async (rows) => {
  const previous = integers(Math.max(rows, 1), 2 ** 20, 3);
  const sources = integers(Math.max(rows, 1), Math.max(rows, 1), 5);
  const next = new Uint32Array(rows + 1).fill(77);
  const got = await runOnBoth(devices, gatherTokens, { buffers: { sources, previous, next }, params: { rows } });
  const wanted = Uint32Array.from(next, (kept, row) => (row < rows ? previous[sources[row]!]! : kept));
  expect(Buffer.compare(Buffer.from(got.next.buffer), Buffer.from(wanted.buffer))).toBe(0);
});
