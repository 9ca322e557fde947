/** Groups of trajectories (the rollouts of one prompt) as lists of rows, end to end. Members need not lie together. */
import { forEachRow, mapRows } from "../../packing/offsets.ts";

/** Rows by group: trajectories of one prompt, which are compared with each other. */
export interface Groups {
  /** Rows of group g are members[offsets[g] .. offsets[g+1]), in their own order, [G+1]. */
  readonly offsets: Uint32Array;
  /** [N]. */
  readonly members: Uint32Array;
  /** Rows per group, where members lie together in order and all groups are equally large; else 0. */
  readonly fixedSize: number;
  /** True where members are 0, 1, 2, ...: groups lie together, one after the other. */
  readonly ordered: boolean;
}

/**
 * Sorts rows by group; rows of one group keep their order.
 * @param groupOfRow [N], numbers below `count`; a group may be empty
 */
export function packGroups(groupOfRow: Uint32Array, count: number): Groups {
  const offsets = new Uint32Array(count + 1);
  for (const group of groupOfRow) offsets[group + 1]!++;
  for (let group = 0; group < count; group++) offsets[group + 1]! += offsets[group]!;
  const next = offsets.slice(0, count);
  const members = new Uint32Array(groupOfRow.length);
  groupOfRow.forEach((group, row) => {
    members[next[group]!++] = row;
  });
  const ordered = members.every((row, i) => row === i);
  return { offsets, members, fixedSize: ordered ? fixedSize(offsets) : 0, ordered };
}

function fixedSize(offsets: Uint32Array): number {
  const size = offsets[1] ?? 0;
  return offsets.every((end, group) => end === group * size) ? size : 0;
}

/** Rows of each group, as views of `members`. */
export function memberRows({ offsets, members }: Pick<Groups, "offsets" | "members">): Uint32Array[] {
  return mapRows(offsets, (_, first, end) => members.subarray(first, end));
}

/**
 * One number per row, [N], from a function of one group's scores. Groups without rows are passed over.
 * @param of gets the group's scores and its rows' places in the batch; returns one number per row
 */
export function byGroup(
  { groups, scores }: { readonly groups: Groups; readonly scores: ArrayLike<number> },
  of: (scores: number[], rows: Uint32Array) => readonly number[],
): Float64Array {
  const values = new Float64Array(groups.members.length);
  forEachRow(groups.offsets, (_, first, end) => {
    if (first === end) return;
    const rows = groups.members.subarray(first, end);
    const groupValues = of(pick(scores, rows), rows);
    rows.forEach((row, k) => {
      values[row] = groupValues[k]!;
    });
  });
  return values;
}

/** The values of some rows. */
export function pick(values: ArrayLike<number>, rows: Uint32Array): number[] {
  return Array.from(rows, (row) => values[row]!);
}

/** Numbers the group ids of rows in order of first appearance. */
export function numberGroups(ids: readonly string[]): { groupOfRow: Uint32Array; names: string[] } {
  const numbers = new Map<string, number>();
  const groupOfRow = Uint32Array.from(ids, (id) => {
    const number = numbers.get(id) ?? numbers.size;
    numbers.set(id, number);
    return number;
  });
  return { groupOfRow, names: [...numbers.keys()] };
}
