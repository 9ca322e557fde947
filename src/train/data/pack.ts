/**
 * Packs trajectories into rows of tokens. A multi-step trajectory in which every prompt repeats all tokens before it
 * becomes one row: each prefix is computed once, and only response tokens are trained on. A prompt that differs from the
 * tokens before it (an edited history) starts a new row.
 */
import type { PackedTokens } from "../../engine/contract/backend.ts";
import { offsetsOf, totalTokens } from "../../engine/packing/offsets.ts";
import type { RewardedTrajectory, Step, TrajectoryGroup } from "./types.ts";

/** The rows of one batch, end to end. Per-token arrays are [T], per-row arrays [N]. */
export interface PackedRows extends PackedTokens {
  /** 1 = a response token. */
  readonly mask: Uint32Array;
  /** Log-probs of the sampler; 0 where mask = 0. */
  readonly rolloutLogprobs: Float32Array;
  /** Index into `trajectories`, [N]. */
  readonly trajectoryOfRow: Uint32Array;
  readonly trajectories: readonly RewardedTrajectory[];
  /** Group of each trajectory: an index into `groups`. */
  readonly groupOfTrajectory: Uint32Array;
  readonly groups: readonly TrajectoryGroup[];
  /** Step of the trajectory that each token came with, [T]. */
  readonly stepOfToken: Uint32Array;
  /** Advantages that steps carried; absent when no trained token has one. */
  readonly givenAdvantages?: GivenAdvantages | undefined;
}

/** Advantages that steps carried, by token. */
export interface GivenAdvantages {
  /** [T]; 0 where none is given. */
  readonly values: Float32Array;
  /** [T], 1 = the step carried one. */
  readonly isGiven: Uint8Array;
}

/** Tokens of consecutive steps, each array [T]. */
export interface TokenRow {
  readonly tokens: number[];
  /** 1 = a response token. */
  readonly mask: number[];
  /** Log-probs of the sampler; 0 where mask = 0. */
  readonly logprobs: number[];
  /** Undefined where the step carried none. */
  readonly advantages: (number | undefined)[];
  /** Step that each token came with, by its place in the trajectory. */
  readonly steps: number[];
}

/** Merges the steps of one trajectory into as few rows as their prompts allow. Steps without tokens are left out. */
export function mergeSteps(steps: readonly Step[]): TokenRow[] {
  const rows: TokenRow[] = [];
  steps.forEach((step, index) => {
    if (step.prompt_ids.length + step.response_ids.length === 0) return;
    const last = rows.at(-1);
    const isContinued = last !== undefined && startsWith(step.prompt_ids, last.tokens);
    const row = isContinued ? last : { tokens: [], mask: [], logprobs: [], advantages: [], steps: [] };
    if (!isContinued) rows.push(row);
    appendStep(row, step, { seen: isContinued ? row.tokens.length : 0, index });
  });
  return rows;
}

function appendStep(row: TokenRow, step: Step, { seen, index }: { seen: number; index: number }): void {
  const { advantage, logprobs } = step;
  const push = (token: number, mask: number, logprob: number, advantage?: number) => {
    row.tokens.push(token);
    row.mask.push(mask);
    row.logprobs.push(logprob);
    row.advantages.push(advantage);
    row.steps.push(index);
  };
  for (const token of step.prompt_ids.slice(seen)) push(token, 0, 0);
  step.response_ids.forEach((token, t) => {
    push(token, 1, logprobs[t]!, typeof advantage === "number" ? advantage : advantage?.[t]);
  });
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.length <= tokens.length && prefix.every((token, i) => token === tokens[i]);
}

/** Packs every trajectory of every group. The first token of a row is never trained on: nothing predicts it. */
export function packTrajectories(groups: readonly TrajectoryGroup[]): PackedRows {
  const trajectories: RewardedTrajectory[] = [];
  const groupOfTrajectory: number[] = [];
  const trajectoryOfRow: number[] = [];
  const rows: TokenRow[] = [];
  groups.forEach((group, g) => {
    for (const trajectory of group.trajectories) {
      for (const row of mergeSteps(trajectory.steps)) {
        rows.push(row);
        trajectoryOfRow.push(trajectories.length);
      }
      trajectories.push(trajectory);
      groupOfTrajectory.push(g);
    }
  });
  return {
    ...concatenate(rows),
    trajectoryOfRow: Uint32Array.from(trajectoryOfRow),
    trajectories,
    groupOfTrajectory: Uint32Array.from(groupOfTrajectory),
    groups,
  };
}

function concatenate(rows: readonly TokenRow[]) {
  const offsets = offsetsOf(rows.map((row) => row.tokens.length));
  const total = totalTokens(offsets);
  const tokens = new Uint32Array(total);
  const mask = new Uint32Array(total);
  const rolloutLogprobs = new Float32Array(total);
  const stepOfToken = new Uint32Array(total);
  for (const [i, row] of rows.entries()) {
    const first = offsets[i]!;
    tokens.set(row.tokens, first);
    mask.set(row.mask, first);
    rolloutLogprobs.set(row.logprobs, first);
    stepOfToken.set(row.steps, first);
    mask[first] = 0;
  }
  const advantages = rows.flatMap((row) => row.advantages);
  const isGiven = Uint8Array.from(advantages, (advantage) => (advantage === undefined ? 0 : 1));
  const values = Float32Array.from(advantages, (advantage) => advantage ?? 0);
  return {
    offsets,
    tokens,
    mask,
    rolloutLogprobs,
    stepOfToken,
    ...(isGiven.some((bit, t) => bit && mask[t]) && { givenAdvantages: { values, isGiven } }),
  };
}

/** Number of rows. */
export function rowCount(rows: PackedTokens): number {
  return rows.offsets.length - 1;
}

/** Rows `[from, to)` of a per-token or per-row array, as a view. */
export function sliceTokens<A extends Uint32Array | Float32Array>(
  array: A,
  rows: PackedTokens,
  range: { from: number; to: number },
): A {
  return array.subarray(rows.offsets[range.from], rows.offsets[range.to]) as A;
}
