/** A bounded form of gateway_load.ts, whose figures are in docs/log/2026-11-22-a-recording-gateway-under-load.md. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../fixtures/folder.ts";
import { growthOf, runLoad } from "./gateway_load.ts";

/** Of the heap after a collection, from the first third of a run to the last. */
const MOST_GROWTH_BYTES = 12 * 2 ** 20;

const root = temporaryFolder("load");

test("256 sessions at once, some of whose clients vanish or never read, and a gateway that is killed: nothing lost, nothing twice", async () => {
  const store = join(root, "traces.db");
  const figures = await runLoad({ store, sessions: 256, seconds: 24, kills: 1, port: 8996, sessionMib: 8 });
  expect(figures).toMatchObject({ lost: 0, twice: 0, broken: 0, killed: 1 });
  expect(figures.replies).toBeGreaterThan(256);
  expect(figures.vanished).toBeGreaterThan(0);
  expect(figures.stuck).toBeGreaterThan(0);
  expect(figures.refused).toBeGreaterThan(0);
  // Sequences of many sessions ran in one batch.
  expect(figures.widest).toBeGreaterThan(32);
});

/** Sessions of one long call each, so that what a finished one leaves behind shows: about 60 kB where it is kept. */
const LONG = { sessions: 32, seconds: 240, kills: 0, turns: 1, letters: 1800, most: 1500 };

test.each([
  ["stays as it is while sessions come and go", 4, true],
  ["is seen to grow where sessions never leave memory", 100_000, false],
])(
  "the heap %s",
  async (_, sessionMib, isFlat) => {
    const store = join(root, `heap-${sessionMib}.db`);
    const { heap, lost, twice } = await runLoad({ ...LONG, store, port: 8995, sessionMib });
    expect({ lost, twice }).toEqual({ lost: 0, twice: 0 });
    expect(growthOf(heap) < MOST_GROWTH_BYTES, `${heap.map((bytes) => Math.round(bytes / 2 ** 20))} MiB`).toBe(isFlat);
  },
  300_000,
);
