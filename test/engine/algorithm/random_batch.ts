/** Random ragged batches with the edge rows: empty, fully masked, one token, ties, far ratios, interleaved groups. */
import { type Groups, packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import type { LossBatch } from "../../../src/engine/algorithm/loss/host.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";

export interface RandomBatch extends LossBatch {
  readonly groups: Groups;
  readonly scores: Float32Array;
  readonly values: Float32Array;
  readonly tokenRewards: Float32Array;
  readonly sumPiSquared: Float32Array;
  readonly rewardBaselines: Float32Array;
  readonly entropy: Float32Array;
  readonly rolloutLogprobs: Float32Array;
}

/** Every number is exactly representable in f32, so that host and device start from the same. */
export function randomBatch(
  seed: number,
  shape: { rows?: number; longest?: number; perToken?: boolean; weighted?: boolean } = {},
): RandomBatch {
  const next = mulberry32(seed);
  const rows = shape.rows ?? 1 + Math.floor(next() * 12);
  const longest = shape.longest ?? 40;
  const lengths = Array.from({ length: rows }, () => rowLength(next, longest));
  if (!lengths.some((n) => n > 0)) lengths[0] = 3;
  const offsets = new Uint32Array(rows + 1);
  for (const [row, n] of lengths.entries()) offsets[row + 1] = offsets[row]! + n;
  const tokens = offsets[rows];
  const floats = (of: (t: number) => number) => Float32Array.from({ length: tokens! }, (_, t) => of(t));
  const perRow = (of: () => number) => Float32Array.from({ length: rows }, of);
  const mask = Uint32Array.from({ length: tokens! }, () => (next() < 0.8 ? 1 : 0));
  for (const row of lengths.keys()) if (next() < 0.1) mask.fill(0, offsets[row], offsets[row + 1]);
  // At least two tokens train, in a row that has them: whitening needs that.
  for (const row of lengths.keys()) if (lengths[row]! >= 2) mask.fill(1, offsets[row], offsets[row]! + 2);
  if (mask.every((m) => m === 0)) mask.fill(1);
  const logprobs = floats(() => -4 * next());
  const groupCount = Math.max(1, Math.floor(rows / 3));
  return {
    offsets,
    mask,
    logprobs,
    oldLogprobs: floats((t) => logprobs[t]! + logRatio(next)),
    rolloutLogprobs: floats((t) => logprobs[t]! + 0.5 * (next() - 0.5)),
    refLogprobs: floats((t) => logprobs[t]! + logRatio(next)),
    advantages: !(shape.perToken ?? next() < 0.5)
      ? { level: "row", values: perRow(() => advantage(next)) }
      : { level: "token", values: floats(() => advantage(next)) },
    rolloutIsWeights: (shape.weighted ?? next() < 0.5) ? floats((t) => (mask[t] === 0 ? 0 : 2 * next())) : undefined,
    entropy: floats(() => 3 * next()),
    groups: packGroups(
      Uint32Array.from({ length: rows }, () => Math.floor(next() * groupCount)),
      groupCount,
    ),
    scores: perRow(() => (next() < 0.5 ? Math.round(next()) : 2 * next() - 1)),
    values: floats(() => next() - 0.5),
    tokenRewards: floats(() => (next() < 0.2 ? next() : 0)),
    sumPiSquared: floats(() => next()),
    rewardBaselines: perRow(() => next()),
  };
}

/** Tokens of a row; some have none, some one. */
function rowLength(next: () => number, longest: number): number {
  const kind = next();
  if (kind < 0.1) return 0;
  if (kind < 0.2) return 1;
  return 1 + Math.floor(next() * longest);
}

/** Mostly near 0; sometimes exactly 0, sometimes beyond the clip. */
function logRatio(next: () => number): number {
  const kind = next();
  if (kind < 0.15) return 0;
  if (kind < 0.2) return (next() - 0.5) * 6;
  return (next() - 0.5) * 0.8;
}

function advantage(next: () => number): number {
  return next() < 0.15 ? 0 : 3 * (next() - 0.5);
}
