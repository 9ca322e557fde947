/** Groups of trajectories (the rollouts of one prompt) as lists of rows, end to end. Members need not lie together. */

export interface Groups {
  /** Rows of group g are members[offsets[g] .. offsets[g+1]), in their own order, [G+1]. */
  readonly offsets: Uint32Array;
  /** [N] */
  readonly members: Uint32Array;
  /** Rows per group, where members lie together in order and all groups are equally large; else 0. */
  readonly fixedSize: number;
  /** True where members are 0, 1, 2, ...: groups lie together, one after the other. */
  readonly ordered: boolean;
}

/**
 * Sorts rows by group, stable.
 * @param groupOfRow [N], numbers below `count`; a group may be empty
 */
export function packGroups(groupOfRow: Uint32Array, count: number): Groups {
  const offsets = new Uint32Array(count + 1);
  for (const group of groupOfRow) offsets[group + 1]!++;
  for (let group = 0; group < count; group++) offsets[group + 1]! += offsets[group]!;
  const next = offsets.slice(0, count);
  const members = new Uint32Array(groupOfRow.length);
  for (let row = 0; row < groupOfRow.length; row++) members[next[groupOfRow[row]!]!++] = row;
  const ordered = members.every((row, i) => row === i);
  return { offsets, members, fixedSize: ordered ? fixedSize(offsets) : 0, ordered };
}

function fixedSize(offsets: Uint32Array): number {
  const size = offsets.length > 1 ? offsets[1]! : 0;
  for (let group = 1; group + 1 < offsets.length; group++)
    if (offsets[group + 1]! - offsets[group]! !== size) return 0;
  return size;
}

/** Numbers the group ids of rows in order of first appearance. */
export function numberGroups(ids: readonly string[]): { groupOfRow: Uint32Array; names: string[] } {
  const numbers = new Map<string, number>();
  const groupOfRow = new Uint32Array(ids.length);
  for (const [row, id] of ids.entries()) {
    const known = numbers.get(id);
    const number = known ?? numbers.size;
    if (known === undefined) numbers.set(id, number);
    groupOfRow[row] = number;
  }
  return { groupOfRow, names: [...numbers.keys()] };
}
