/** Equal rewards teach nothing: exactly 0 from every estimator that compares rewards, whatever their size and number. */
import { describe, expect, test } from "vitest";
import type { AdvantageBatch } from "../../../src/engine/algorithm/advantage/definition.ts";
import { estimatorNames } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../src/engine/algorithm/advantage/host.ts";
import { whiten } from "../../../src/engine/algorithm/advantage/whitening.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { computeAdvantages } from "../../../src/engine/algorithm/run.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { mean, populationDeviation } from "../../../src/leaves/statistics.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { furthest } from "./golden.ts";

const REWARDS = [1e-6, -0.1, 100.3, -1234.567, 999_999.9];
const SIZES = [1, 2, 3, 6, 8, 65];
const LAYOUTS = ["together", "interleaved"] as const;

/** What an estimator that does not compare makes of a reward r; groups of one have nothing to compare with. */
const PLAIN: Readonly<Record<string, (r: number) => number>> = { reinforce: (r) => r };
const ALONE: Readonly<Record<string, (r: number) => number>> = {
  ...PLAIN,
  grpo: (r) => r / (1 + 1e-6),
  grpo_vectorized: (r) => r / (1 + 1e-6),
  "rllm.grpo": (r) => r / (1 + 1e-6),
  rloo: (r) => r,
  opo: (r) => r,
  gpg: (r) => r,
  optimal_token_baseline: (r) => r,
  tir_optimal_token_baseline: (r) => r,
};

/** A baseline b = r W / (W + 1e-8) leaves 1e-8 of the reward, where float32 has digits for it. */
const TOKEN_BASELINE = /optimal_token_baseline$/;
/** The longest row of a group has no baseline at its tail otherwise. */
const settingsOf = (name: string) => (TOKEN_BASELINE.test(name) ? { handle_zero_tail: false } : {});

/** Three groups of `size` rows of one to five tokens, the first of each row masked now and then. */
function batchOf(rewardOf: (row: number) => number, { size, layout }: { size: number; layout: string }) {
  const rows = 3 * size;
  const next = mulberry32(size);
  const lengths = Array.from({ length: rows }, () => 1 + Math.floor(next() * 5));
  const offsets = Uint32Array.from({ length: rows + 1 }, (_, row) => lengths.slice(0, row).reduce((a, b) => a + b, 0));
  const mask = new Uint32Array(offsets[rows]!).fill(1);
  for (let row = 0; row < rows; row++) if (lengths[row]! > 1 && next() < 0.3) mask[offsets[row]!] = 0;
  const group = (row: number) => (layout === "together" ? Math.floor(row / size) : row % 3);
  const scores = Float32Array.from({ length: rows }, (_, row) => rewardOf(row));
  const batch: AdvantageBatch = {
    ...{ offsets, mask, scores, rewardBaselines: scores },
    groups: packGroups(
      Uint32Array.from({ length: rows }, (_, row) => group(row)),
      3,
    ),
    values: new Float32Array(mask.length),
    oldLogprobs: new Float32Array(mask.length).fill(-1),
    sumPiSquared: new Float32Array(mask.length).fill(0.5),
  };
  return batch;
}

/** Values of trained rows or tokens. */
function trained({ offsets, mask }: AdvantageBatch, { level, values }: { level: string; values: ArrayLike<number> }) {
  const weights = level === "row" ? countRows(offsets, mask).trained : mask;
  return Array.from(values).filter((_, i) => weights[i] !== 0);
}

const CASES = estimatorNames().flatMap((name) => LAYOUTS.map((layout) => [name, layout] as const));

overDevices("of equal rewards", (device) => {
  test.each(CASES)("%s, groups %s", async (name, layout) => {
    for (const size of SIZES)
      for (const given of REWARDS) {
        if (name === "grpo_passk" && size === 1) continue;
        const reward = Math.fround(given);
        const batch = batchOf(() => reward, { size, layout });
        const wanted = (size === 1 ? ALONE : PLAIN)[name]?.(reward) ?? 0;
        const left = TOKEN_BASELINE.test(name) && size > 1 ? 1e-7 * Math.abs(reward) : 0;
        const rounding = wanted === 0 ? left : 1e-6 * Math.abs(wanted);
        for (const on of [{}, { device }]) {
          const { estimate } = await computeAdvantages(batch, name, { ...on, settings: settingsOf(name) });
          const found = trained(batch, estimate);
          const worst = Math.max(...found.map((a) => Math.abs(a - wanted)));
          expect(worst, `${name} of ${size} rewards of ${given}`).toBeLessThanOrEqual(rounding);
        }
      }
  });

  test("whose groups differ: estimators that compare within a group", async () => {
    for (const name of ["grpo", "rllm.grpo", "trl.grpo", "rloo", "opo", "gpg", "gdpo", "reinforce_plus_plus_baseline"])
      for (const layout of LAYOUTS) {
        const group = (row: number) => (layout === "together" ? Math.floor(row / 6) : row % 3);
        const batch = batchOf((row) => [100.3, -0.7, 1e6][group(row)]!, { size: 6, layout });
        const { estimate } = await computeAdvantages(batch, name, { device });
        expect(new Set(estimate.values), `${name} ${layout}`).toEqual(new Set([0]));
      }
  });

  const COMPARING = estimatorNames().filter((name) => !["reinforce", "remax", "gpg"].includes(name));
  test.each(COMPARING)("and those that differ little, far from 0, equal float64: %s", async (name) => {
    for (const layout of LAYOUTS) {
      const batch = batchOf((row) => 100 + ((row * 7) % 11) / 64, { size: 6, layout });
      const { estimate } = await computeAdvantages(batch, name, { device });
      const [got, want] = [trained(batch, estimate), trained(batch, advantages(batch, name))];
      expect(furthest(got, want, { relative: 1e-3, absolute: 1e-3 }), layout).toBeUndefined();
    }
  });
});

describe("in float64", () => {
  test("the mean of equal values is their value, and of others that of a plain sum", () => {
    for (const value of REWARDS)
      for (const size of SIZES) {
        const values = new Array<number>(size).fill(value);
        expect(mean(values)).toBe(value);
        expect(populationDeviation(values)).toBe(0);
      }
    expect(mean([])).toBe(0);
    expect(mean([1, 2, 6])).toBe(3);
    expect(mean([Infinity, 1])).toBe(Infinity);
    expect(mean([1, -Infinity])).toBe(-Infinity);
  });

  test.each([0, 1])("values whose weights add to %i are whitened to 0", (count) => {
    const weights = [count, 0, 0];
    expect([...whiten(Float64Array.of(5, 7, 9), weights, "token")]).toEqual([0, 0, 0]);
    expect([...whiten(Float64Array.of(5, 7, 9), weights, "row")]).toEqual([0, 0, 0]);
  });
});
