/** Where advantages land: trajectories of several rows and steps, per row and per token. */
import { describe, expect, test } from "vitest";
import { packTrajectories } from "../../../src/train/data/pack.ts";
import { AdvantageSpread, type Unit } from "../../../src/train/loop/stages/advantage_spread.ts";
import { perRow, perToken } from "../../fixtures/advantages.ts";
import { rewardedGroup, tokenStep } from "../../fixtures/stage.ts";

// The first trajectory has two rows (its history is edited), the second one row of two steps.
const EDITED = [tokenStep([2, 3]), tokenStep([5], { prompt_ids: [9, 9] })];
const CONTINUED = [tokenStep([4]), tokenStep([6, 7], { prompt_ids: [1, 4, 8] })];
const rows = packTrajectories([
  rewardedGroup([1], { role: "edited", steps: EDITED }),
  rewardedGroup([0], { role: "continued", steps: CONTINUED }),
]);
const MASK = [0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1];
const PLAIN = { enable: false, mode: "broadcast", normalize_by_steps: false } as never;
const unit = (trajectory: number, step?: number): Unit => ({
  trajectory,
  ...(step !== undefined && { step }),
  reward: 0,
  group: "g",
});
const ofTrajectories = [unit(0), unit(1)];
const ofSteps = [unit(0, 0), unit(0, 1), unit(1, 0), unit(1, 1)];
/** Values at trained tokens, 0 elsewhere. */
const atTrained = (...values: number[]) => MASK.map((bit) => (bit ? values.shift()! : 0));

test("rows are as the figures below suppose", () => {
  expect([...rows.mask]).toEqual(MASK);
  expect([...rows.offsets]).toEqual([0, 3, 6, 11]);
});

test("trained tokens are counted by trajectory and by step", () => {
  const spread = new AdvantageSpread(rows);
  expect(ofTrajectories.map((each) => spread.trainedTokens(each))).toEqual([3, 3]);
  expect(ofSteps.map((each) => spread.trainedTokens(each))).toEqual([2, 1, 1, 2]);
});

describe("put()", () => {
  test.each<[what: string, units: Unit[], given: ReturnType<typeof perRow>, options: object, expected: unknown]>([
    ["one per trajectory", ofTrajectories, perRow(5, 7), {}, perRow(5, 5, 7)],
    [
      "one per trajectory, over its steps",
      ofTrajectories,
      perRow(5, 7),
      { enable: true, normalize_by_steps: true },
      perRow(2.5, 2.5, 3.5),
    ],
    [
      "not over its steps without stepwise advantages",
      ofTrajectories,
      perRow(5, 7),
      { normalize_by_steps: true },
      perRow(5, 5, 7),
    ],
    ["one per step", ofSteps, perRow(1, 2, 3, 4), {}, perToken(...atTrained(1, 1, 2, 3, 4, 4))],
    [
      "one per token of a trajectory",
      ofTrajectories,
      perToken(1, 2, 3, 4, 5, 6),
      {},
      perToken(...atTrained(1, 2, 3, 4, 5, 6)),
    ],
    [
      "of units in another order",
      [unit(1), unit(0)],
      perToken(4, 5, 6, 1, 2, 3),
      {},
      perToken(...atTrained(1, 2, 3, 4, 5, 6)),
    ],
    ["one per token of a step", ofSteps, perToken(1, 2, 3, 4, 5, 6), {}, perToken(...atTrained(1, 2, 3, 4, 5, 6))],
  ])("%s", (_, units, given, options, expected) => {
    const spread = new AdvantageSpread(rows);
    spread.put(units, given, { ...(PLAIN as object), ...options } as never);
    expect(spread.advantages()).toEqual(expected);
  });

  test("trajectories with advantages per token keep them beside those with one", () => {
    const spread = new AdvantageSpread(rows);
    spread.put([unit(1)], perToken(4, 5, 6), PLAIN);
    spread.put([unit(0)], perRow(9), PLAIN);
    expect(spread.advantages()).toEqual(perToken(...atTrained(9, 9, 9, 4, 5, 6)));
    const none = new AdvantageSpread(rows);
    none.put([], perToken(), PLAIN);
    none.put(ofTrajectories, perRow(1, 2), PLAIN);
    expect(none.advantages()).toEqual(perRow(1, 1, 2));
  });

  test.each([
    [perRow(1, Number.NaN), "continued/0: it must be finite (NaN). Check"],
    [perToken(1, 2, 3, 4, 5, Number.NaN), "continued/0: it must be finite (NaN, at token 4 of the row). Check"],
    [
      perToken(1, 2, Number.POSITIVE_INFINITY, 4, 5, 6),
      "edited/0: it must be finite (Infinity, at token 2 of the row). Check",
    ],
  ])("%j is refused with its place", (given, message) => {
    const put = () => new AdvantageSpread(rows).put(ofTrajectories, given, PLAIN);
    expect(put).toThrow(`Cannot train on the advantage of the trajectory ${message}`);
    expect(put).toThrow(expect.objectContaining({ kind: "code" }) as Error);
  });
});

describe("keepGiven()", () => {
  const given = {
    values: Float32Array.from(MASK, (_, t) => t),
    isGiven: Uint8Array.from(MASK, (_, t) => Number(t > 1)),
  };

  test("keeps what the steps of the chosen trajectories carry, 0 where they carry none", () => {
    const spread = new AdvantageSpread({ ...rows, givenAdvantages: given });
    expect(spread.keepGiven([0])).toEqual([0, 2, 5]);
    spread.put([unit(1)], perRow(8), PLAIN);
    expect(spread.advantages()).toEqual(perToken(...atTrained(0, 2, 5, 8, 8, 8)));
  });

  test("of rows without any keeps zeros; of no trajectory it keeps nothing", () => {
    const spread = new AdvantageSpread(rows);
    expect(spread.keepGiven([])).toEqual([]);
    expect(spread.keepGiven([1])).toEqual([0, 0, 0]);
  });

  test("refuses what is not finite, with the token of its row", () => {
    const values = given.values.map((value, t) => (t === 7 ? Number.NaN : value));
    const spread = new AdvantageSpread({ ...rows, givenAdvantages: { ...given, values } });
    expect(() => spread.keepGiven([0])).not.toThrow();
    expect(() => spread.keepGiven([1])).toThrow("continued/0: it must be finite (NaN, at token 1 of the row)");
  });
});
