/** Saved benchmark runs: files, comparison, and what counts as slower. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { compareRuns, findRun, tableOf } from "../../bench/compare.ts";
import { compareFigures, type Figure, readFigures, saveFigures } from "../../bench/history.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const folder = temporaryFolder("bench-history");

const figure = (name: string, value: number, more: Partial<Figure> = {}): Figure => ({
  date: "2026-11-22T10:00:00.000Z",
  commit: "abc1234",
  device: "llvmpipe",
  driver: "mesa",
  name,
  value,
  unit: "tokens/s",
  low: value * 0.9,
  high: value * 1.1,
  ...more,
});

test("a saved run is read back, and found by a part of its name", () => {
  const run = [figure("a", 1), figure("b", 2, { peer: "PyTorch", ratio: 0.5 })];
  const path = saveFigures(run, folder);
  expect(path).toBe(join(folder, "2026-11-22T1000-abc1234.jsonl"));
  expect(readFigures(path)).toEqual(run);
  expect(findRun("abc12", folder)).toBe(path);
  expect(findRun("def", folder)).toBeUndefined();
  saveFigures([figure("a", 1, { commit: "abc9999+" })], folder);
  expect(findRun("abc", folder)).toBeUndefined();
});

test.each([
  ["ranges that overlap are the same", 100, 85, "same"],
  ["below the range of before is slower", 100, 80, "slower"],
  ["above it is faster", 100, 125, "faster"],
])("%s", (_, before, after, verdict) => {
  const [one] = compareFigures([figure("a", before)], [figure("a", after)]);
  expect(one).toMatchObject({ verdict, change: after / before });
});

test("only figures of one name, device and unit are compared", () => {
  const before = [figure("a", 1), figure("b", 1), figure("c", 1)];
  const after = [figure("a", 1, { device: "other" }), figure("c", 2), figure("d", 1)];
  expect(compareFigures(before, after).map(({ name }) => name)).toEqual(["c"]);
});

test("the table has a row a figure, with its change and verdict", () => {
  const rows = tableOf(compareFigures([figure("a", 2000), figure("long", 1)], [figure("a", 1000), figure("long", 1)]));
  expect(rows.split("\n").map((row) => row.split(/\s+/))).toEqual([
    ["a", "2,000", "1,000", "tokens/s", "-50.0%", "slower"],
    ["long", "1.00", "1.00", "tokens/s", "+0.0%"],
  ]);
});

test("a line that is no figure is named", () => {
  const path = join(folder, "broken.jsonl");
  writeFileSync(path, `${JSON.stringify(figure("a", 1))}\n{"name":"b"}\n`);
  expect(() => readFigures(path)).toThrow(`Cannot read ${path}: line 2 is no figure.`);
});

test("a regression gives status 1, a run that is not there 2", () => {
  const fast = saveFigures([figure("a", 100, { commit: "fast" })], folder);
  const slow = saveFigures([figure("a", 50, { commit: "slow" })], folder);
  expect(compareRuns([fast, slow])).toMatchObject({
    status: 1,
    text: expect.stringContaining("1 of 1 slower"),
  });
  expect(compareRuns([slow, fast])).toMatchObject({
    status: 0,
    text: expect.stringContaining("0 of 1 slower"),
  });
  expect(compareRuns([fast, join(folder, "none.jsonl")]).status).toBe(2);
  expect(compareRuns([fast]).status).toBe(2);
});
