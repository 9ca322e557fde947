/** Checks of rollouts that a caller packed. */
import { ConfigError } from "../../../leaves/errors.ts";
import { forEachRow, rowAt, totalTokens } from "../offsets.ts";
import type { Floats, Rollouts } from "./rollouts.ts";

/**
 * Checks typed arrays that are packed already; nothing is copied.
 * @returns the rollouts
 * @throws {ConfigError} for offsets that fall, lengths that disagree, or the first number that is not finite, with its
 * row and token
 */
export function checkRollouts(rollouts: Rollouts): Rollouts {
  const { offsets, mask, tokens, groupOfRow, rewards, rewardBaselines, rewardComponents } = rollouts;
  checkOffsets(offsets);
  const rows = offsets.length - 1;
  const perRow = { rewards, reward_baseline: rewardBaselines, ...rewardComponents };
  for (const [name, values] of Object.entries({ ...perRow, group: groupOfRow })) checkLength(name, values, rows);
  for (const [name, values] of Object.entries({ mask, ...tokens })) checkLength(name, values, totalTokens(offsets));
  for (const [name, values] of Object.entries(perRow)) checkFinite(name, values, (i) => `row ${i}`);
  const placeOf = (t: number) => {
    const row = rowAt(offsets, t);
    return `row ${row}, token ${t - offsets[row]!}`;
  };
  for (const [name, values] of Object.entries(tokens)) checkFinite(name, values, placeOf);
  return rollouts;
}

function checkOffsets(offsets: Uint32Array): void {
  forEachRow(offsets, (row, first, end) => {
    if (end < first)
      throw new ConfigError(`Cannot use packed rollouts: offsets must not fall (${end} after ${first} at row ${row}).`);
  });
}

function checkLength(name: string, values: ArrayLike<number> | undefined, length: number): void {
  if (values && values.length !== length)
    throw new ConfigError(`Cannot use packed rollouts: ${name} must have ${length} numbers (${values.length}).`, {
      path: name,
    });
}

function checkFinite(name: string, values: Floats | undefined, placeOf: (i: number) => string): void {
  const wrong = values?.findIndex((x) => !Number.isFinite(x)) ?? -1;
  if (wrong >= 0)
    throw new ConfigError(
      `Cannot use packed rollouts: ${name} must be finite (${values?.[wrong]} at ${placeOf(wrong)}).`,
      { path: name },
    );
}
