/** A bounded form of gateway_load.ts: the figures of the whole one are in LOG.md. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../fixtures/folder.ts";
import { runLoad } from "./gateway_load.ts";

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
