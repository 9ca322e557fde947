/** The rows of each optimiser step, by the loss of their role. */
import type { TopTokens, TrainBatch } from "../../../engine/contract/backend.ts";
import { rowCount, sliceTokens } from "../../data/pack.ts";
import type { AdvantageRows } from "../contract.ts";
import { algorithmOf } from "../roles.ts";
import type { LoopSettings } from "../settings.ts";
import type { RoleLoss } from "./loss_settings.ts";

export interface RowRange {
  readonly from: number;
  readonly to: number;
}

/** Nearly equal ranges of rows. Groups are contiguous, so a mini-batch cuts at most two of them. */
export function minibatches(rows: number, count: number): RowRange[] {
  const ranges = Array.from({ length: count }, (_, i) => ({
    from: Math.floor((rows * i) / count),
    to: Math.floor((rows * (i + 1)) / count),
  }));
  return ranges.filter(({ from, to }) => to > from);
}

/** The rows of a range by the loss of their role, without rows that have no trained token. */
export function* partsByLoss(
  rows: AdvantageRows,
  { range, settings }: { range: RowRange; settings: LoopSettings },
): Generator<[loss: RoleLoss, part: TrainBatch]> {
  const chosen = new Map<string, { loss: RoleLoss; members: number[] }>();
  for (let row = range.from; row < range.to; row++) {
    if (!rows.mask.subarray(rows.offsets[row], rows.offsets[row + 1]).includes(1)) continue;
    const role = rows.groups[rows.groupOfTrajectory[rows.trajectoryOfRow[row]!]!]!.group_role;
    const { loss: name, loss_args } = algorithmOf(role, settings.algorithm);
    const key = JSON.stringify([name, loss_args]);
    const part = chosen.get(key) ?? { loss: { name, loss_args }, members: [] };
    part.members.push(row);
    chosen.set(key, part);
  }
  for (const { loss, members } of chosen.values()) yield [loss, pickRows(rows, members)];
}

/** The offsets of some rows end to end, and a function that takes their part of a per-token array. */
export function rowGatherer(rows: AdvantageRows, members: readonly number[]) {
  const offsets = new Uint32Array(members.length + 1);
  members.forEach((row, i) => {
    offsets[i + 1] = offsets[i]! + rows.offsets[row + 1]! - rows.offsets[row]!;
  });
  const gather = <A extends Uint32Array | Float32Array>(array: A): A => {
    const gathered = new (array.constructor as new (length: number) => A)(offsets[members.length]!);
    members.forEach((row, i) => void gathered.set(sliceTokens(array, rows, { from: row, to: row + 1 }), offsets[i]));
    return gathered;
  };
  return { offsets, gather };
}

function pickRows(rows: AdvantageRows, members: readonly number[]): TrainBatch {
  const { offsets, gather } = rowGatherer(rows, members);
  const { level, values } = rows.advantages;
  return {
    offsets,
    tokens: gather(rows.tokens),
    mask: gather(rows.mask),
    advantages: {
      level,
      values: level === "token" ? gather(values) : Float32Array.from(members, (row) => values[row]!),
    },
    rolloutLogprobs: gather(rows.rolloutLogprobs),
    ...(rows.oldLogprobs && { oldLogprobs: gather(rows.oldLogprobs) }),
    ...(rows.refLogprobs && { refLogprobs: gather(rows.refLogprobs) }),
    ...(rows.rolloutIsWeights && { rolloutIsWeights: gather(rows.rolloutIsWeights) }),
    ...(rows.teacherTop && { teacherTop: pickTop(rows.teacherTop, rows, members) }),
  };
}

function pickTop({ k, ...top }: TopTokens, { offsets }: AdvantageRows, members: readonly number[]): TopTokens {
  const ranges = members.map((row) => [offsets[row]! * k, offsets[row + 1]! * k] as const);
  const length = ranges.reduce((sum, [first, end]) => sum + end - first, 0);
  const picked = { k, tokens: new Uint32Array(length), logprobs: new Float32Array(length) };
  let at = 0;
  for (const [first, end] of ranges) {
    picked.tokens.set(top.tokens.subarray(first, end), at);
    picked.logprobs.set(top.logprobs.subarray(first, end), at);
    at += end - first;
  }
  return picked;
}

/** The denominators of a step that is split into several losses. */
export function denominators(parts: readonly TrainBatch[]) {
  const count = (mask: Uint32Array) => mask.reduce((sum, bit) => sum + bit, 0);
  const rows = parts.reduce((sum, part) => sum + rowCount(part), 0);
  return {
    batch_num_tokens: parts.reduce((sum, { mask }) => sum + count(mask), 0),
    global_batch_size: rows,
    all_rows: rows,
  };
}
