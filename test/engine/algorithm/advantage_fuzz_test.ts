import { describe, expect, test } from "vitest";
import { estimatorNames } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages, groupAdvantages } from "../../../src/engine/algorithm/advantage/host.ts";
import { advantageBatch } from "../../../src/engine/algorithm/rollout_batches.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { computeAdvantages, streamAdvantages } from "../../../src/engine/algorithm/run.ts";
import { packRollouts } from "../../../src/engine/packing/rollouts/builder.ts";
import { streamJsonl } from "../../../src/engine/packing/rollouts/read.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { furthest } from "./golden.ts";
import { randomBatch } from "./random_batch.ts";

const ROUNDS = 400;
const FUZZ = { relative: 2e-4, absolute: 2e-5 };
const NAMES = estimatorNames();

overDevices("random ragged batches equal float64", (device) => {
  test(`${ROUNDS} of every estimator`, { timeout: 600_000 }, async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const name = NAMES[round % NAMES.length]!;
      const batch = randomBatch(5000 + round);
      const sizes = batch.groups.offsets.slice(1).map((end, g) => end - batch.groups.offsets[g]!);
      if (name === "grpo_passk" && sizes.includes(1)) continue;
      const want = advantages(batch, name);
      const got = await computeAdvantages(batch, name, { device });
      const lengths = countRows(batch.offsets, batch.mask).trained;
      const weights = want.level === "row" ? lengths : batch.mask;
      const trained = (values: ArrayLike<number>) => Array.from(values).filter((_, i) => weights[i] !== 0);
      const where = `round ${round} ${name}`;
      expect(furthest(trained(got.estimate.values), trained(want.values), FUZZ), where).toBeUndefined();
      expect(got.estimate.values.every(Number.isFinite), where).toBe(true);
      if (want.returns)
        expect(furthest(trained(got.estimate.returns!), trained(want.returns), FUZZ), where).toBeUndefined();
    }
  });

  test.each([4, 8, 12, 16, 32, 36])("groups of %i rows that lie together", async (size) => {
    const next = mulberry32(size);
    const rows = size * 33;
    const batch = {
      offsets: Uint32Array.from({ length: rows + 1 }, (_, i) => i),
      mask: new Uint32Array(rows).fill(1),
      groups: packGroups(
        Uint32Array.from({ length: rows }, (_, i) => Math.floor(i / size)),
        33,
      ),
      scores: Float32Array.from({ length: rows }, next),
    };
    expect(batch.groups.fixedSize).toBe(size);
    for (const name of ["grpo", "rloo"]) {
      const got = await computeAdvantages(batch, name, { device });
      expect(furthest(got.estimate.values, advantages(batch, name).values, FUZZ), name).toBeUndefined();
    }
  });

  test("means far above the spread do not cancel", async () => {
    const scores = Float32Array.of(10_000.25, 10_000.5, 10_000.75, 10_001);
    const batch = {
      offsets: Uint32Array.of(0, 1, 2, 3, 4),
      mask: Uint32Array.of(1, 1, 1, 1),
      groups: packGroups(Uint32Array.of(0, 0, 0, 0), 1),
      scores,
    };
    const got = await computeAdvantages(batch, "grpo", { device });
    expect(
      furthest(got.estimate.values, advantages(batch, "grpo").values, {
        relative: 1e-3,
        absolute: 1e-3,
      }),
    ).toBeUndefined();
  });
});

describe("properties", () => {
  const groups = [[1, 0, 0.5], [2, 2], [7], [0.1, 0.9, 0.4, 0.3]];
  test.each(["grpo", "rloo", "rllm.grpo", "trl.grpo"])("%s: advantages of a group of two or more sum to 0", (name) => {
    for (const group of groupAdvantages(groups, name).filter((g) => g.length > 1))
      expect(group.reduce((sum, a) => sum + a, 0)).toBeCloseTo(0, 9);
  });
  test("a group of one: verl keeps its reward, TRL gives 0, rloo_vectorized gives 0", () => {
    expect(groupAdvantages([[2]], "grpo")[0]![0]).toBeCloseTo(2 / (1 + 1e-6), 12);
    expect(groupAdvantages([[2]], "trl.grpo")).toEqual([[0]]);
    expect(groupAdvantages([[2]], "rloo")).toEqual([[2]]);
    expect(groupAdvantages([[2]], "rloo_vectorized")).toEqual([[0]]);
  });
  test("equal rewards teach nothing", () => {
    expect(groupAdvantages([[3, 3, 3]], "grpo")).toEqual([[0, 0, 0]]);
  });
  test("grpo does not change when rewards are shifted, and barely when they are scaled", () => {
    const [plain] = groupAdvantages([[1, 0, 0.5]], "grpo");
    const [moved] = groupAdvantages([[13, 3, 8]], "grpo");
    expect(furthest(moved!, plain!, { relative: 1e-5, absolute: 0 })).toBeUndefined();
  });
});

test("a stream of whole groups gives what the whole file gives, and refuses batch-wide statistics", async () => {
  const rows = Array.from({ length: 60 }, (_, i) => ({
    group: `g${(i * 7) % 12}`,
    reward: (i * i) % 11,
    mask: [1, 0],
  }));
  const text = rows.map((row) => JSON.stringify(row)).join("\n");
  const whole = advantages(advantageBatch(packRollouts(rows)), "grpo").values;
  let seen = 0;
  const parts = () => streamJsonl(() => text, { tokensPerPart: 24 });
  for await (const { estimate, rows: places } of streamAdvantages(parts(), "grpo")) {
    for (const [k, row] of places.entries()) expect(estimate.values[k]).toBeCloseTo(whole[row]!, 12);
    seen += places.length;
  }
  expect(seen).toBe(rows.length);
  await expect(streamAdvantages(parts(), "gae").next()).rejects.toThrow(/span the whole batch/);
});
