/** Packed rows cut into passes, and the tokens whose log-probabilities a pass computes. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { PackedTokens } from "../../contract/backend.ts";
import type { Transformer } from "../transformer.ts";

/** Ascending positions, and for each a next token whose log-probability is wanted, [R]. Equal positions follow each other. */
export interface Targets {
  readonly positions: Uint32Array;
  readonly tokens: Uint32Array;
}

/**
 * The targets of a pass: every token whose mask is 1, except first tokens (mask [T]), or a given token after every
 * position (targets [T]), or several: sequence i then has the targets [targetOffsets[i], targetOffsets[i+1]), equally many
 * after each of its positions. Or a given token after each of the given positions, [R], which ascend and may repeat.
 */
export type TargetChoice =
  | { readonly mask: Uint32Array }
  | { readonly targets: Uint32Array; readonly targetOffsets?: Uint32Array | undefined }
  | { readonly targets: Uint32Array; readonly positions: Uint32Array };

type Rows = PackedTokens &
  Partial<{
    mask: Uint32Array;
    targets: Uint32Array;
    targetOffsets: Uint32Array | undefined;
    positions: Uint32Array;
  }>;

/** Targets by position: position rows[p] has the targets [offsets[p], offsets[p+1]). */
export interface TargetGroups {
  /** Distinct, ascending, [P]. */
  readonly rows: Uint32Array;
  /** [P+1]. */
  readonly offsets: Uint32Array;
}

/** @param positions of {@link Targets} */
export function groupTargets(positions: Uint32Array): TargetGroups {
  const starts = positions.map((_, r) => r).filter((r) => positions[r] !== positions[r - 1]);
  const offsets = new Uint32Array(starts.length + 1).fill(positions.length);
  offsets.set(starts);
  return { rows: starts.map((r) => positions[r]!), offsets };
}

/** Sequences [from, to). */
export interface SequenceRange {
  readonly from: number;
  readonly to: number;
}

/** Most of something that sequences have in a pass, and where each sequence's begin, [N+1]. */
export interface PassLimit {
  readonly offsets: Uint32Array;
  readonly most: number;
}

/** The whole sequences from `from` on that are within every limit together, or one sequence beyond them. */
export function nextPass(from: number, limits: readonly [PassLimit, ...PassLimit[]]): SequenceRange {
  const count = limits[0].offsets.length - 1;
  let to = from + 1;
  while (to < count && limits.every(({ offsets, most }) => offsets[to + 1]! - offsets[from]! <= most)) to++;
  return { from, to };
}

/**
 * @throws ConfigError for a token or target outside the vocabulary, a sequence beyond the context or with more targets than
 * a pass takes, or a mask or targets that are not one per token, or as many as `targetOffsets` or `positions` say.
 */
export function checkRows(model: Transformer, rows: Rows): void {
  const { vocabSize } = model.config;
  const { tokens, offsets, targets } = rows;
  for (const name of ["mask", "targets"] as const) {
    const { length } = rows[name] ?? tokens;
    const count = name === "targets" && rows.targets && (rows.positions?.length ?? rows.targetOffsets?.at(-1));
    const expected = typeof count === "number" ? count : tokens.length;
    if (length !== expected)
      throw new ConfigError(`Cannot run a pass: ${name} must have one element per token (${length} of ${expected}).`);
  }
  for (let i = 0; i + 1 < offsets.length; i++) {
    const length = offsets[i + 1]! - offsets[i]!;
    if (length <= model.contextLength) continue;
    throw new ConfigError(
      `Cannot run sequence ${i}: it is longer than the model's context of ${model.contextText} (${length}).`,
    );
  }
  if (rows.targetOffsets || rows.positions) checkTargetCounts(model, targetOffsetsOf(rows));
  for (const [what, ids] of [
    ["token", tokens],
    ["target", targets],
  ] as const) {
    const outside = ids?.findIndex((id) => id >= vocabSize) ?? -1;
    if (ids && outside >= 0)
      throw new ConfigError(`Cannot run ${what} ${outside}: ids must lie in [0, ${vocabSize}) (${ids[outside]}).`);
  }
}

function checkTargetCounts({ passTargets }: Transformer, offsets: Uint32Array): void {
  for (let i = 0; i + 1 < offsets.length; i++) {
    const count = offsets[i + 1]! - offsets[i]!;
    if (count <= passTargets) continue;
    throw new ConfigError(
      `Cannot run sequence ${i}: it has more targets than one binding of this device covers (${count} of at most ${passTargets}). Give fewer targets per position, or cut the sequence.`,
    );
  }
}

/** Sequences [from, to) with offsets from 0. */
export function slicePacked(rows: PackedTokens, { from, to }: SequenceRange): PackedTokens {
  const start = rows.offsets[from]!;
  return {
    tokens: rows.tokens.subarray(start, rows.offsets[to]),
    offsets: rows.offsets.subarray(from, to + 1).map((offset) => offset - start),
  };
}

/** Returns where each sequence's targets begin, [N+1]; for a mask where they would, if it were 1 everywhere. */
export function targetOffsetsOf({ offsets, targetOffsets, positions }: Rows): Uint32Array {
  if (!positions) return targetOffsets ?? offsets;
  let r = 0;
  return offsets.map((offset) => {
    while (r < positions.length && positions[r]! < offset) r++;
    return r;
  });
}

/** The targets of one part of the rows, and their offsets by sequence. */
export function targetsOf(
  rows: PackedTokens & TargetChoice,
  {
    part,
    range,
    targetOffsets = targetOffsetsOf(rows),
  }: { part: PackedTokens; range: SequenceRange; targetOffsets?: Uint32Array },
): { targets: Targets; offsets: Uint32Array } {
  const start = rows.offsets[range.from]!;
  if ("mask" in rows) return maskedTargets(part, rows.mask.subarray(start, rows.offsets[range.to]));
  const [first, end] = [targetOffsets[range.from]!, targetOffsets[range.to]!];
  const tokens = rows.targets.subarray(first, end);
  const offsets = targetOffsets.subarray(range.from, range.to + 1).map((offset) => offset - first);
  if ("positions" in rows)
    return { targets: { positions: rows.positions.subarray(first, end).map((at) => at - start), tokens }, offsets };
  return { targets: { positions: positionsOf(part, offsets), tokens }, offsets };
}

/** Each position as often as it has targets. */
function positionsOf({ offsets }: PackedTokens, targetOffsets: Uint32Array): Uint32Array {
  const positions = new Uint32Array(targetOffsets.at(-1)!);
  for (let i = 0; i + 1 < offsets.length; i++) {
    const [first, start, end] = [offsets[i]!, targetOffsets[i]!, targetOffsets[i + 1]!];
    const width = (end - start) / (offsets[i + 1]! - first);
    for (let r = start; r < end; r++) positions[r] = first + Math.floor((r - start) / width);
  }
  return positions;
}

/** The masked tokens, each at the position before it. The first token of a sequence has none and is never a target. */
function maskedTargets(
  { tokens, offsets }: PackedTokens,
  mask: Uint32Array,
): { targets: Targets; offsets: Uint32Array } {
  const positions: number[] = [];
  const counts = new Uint32Array(offsets.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++) if (mask[t] === 1) positions.push(t - 1);
    counts[i + 1] = positions.length;
  }
  const targets = {
    positions: Uint32Array.from(positions),
    tokens: Uint32Array.from(positions, (p) => tokens[p + 1]!),
  };
  return { targets, offsets: counts };
}
