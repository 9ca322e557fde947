/** Rows packed end to end: row i holds the tokens offsets[i] .. offsets[i+1]; offsets is [N+1]. */

/** Offsets of rows of these lengths, [N+1]. */
export function offsetsOf(lengths: readonly number[]): Uint32Array {
  const offsets = new Uint32Array(lengths.length + 1);
  for (const [row, length] of lengths.entries()) offsets[row + 1] = offsets[row]! + length;
  return offsets;
}

/** Calls `of` for every row, in order, with its tokens first <= t < end. */
export function forEachRow(offsets: ArrayLike<number>, of: (row: number, first: number, end: number) => void): void {
  for (let row = 0; row + 1 < offsets.length; row++) of(row, offsets[row]!, offsets[row + 1]!);
}

/** One result per row, [N]. */
export function mapRows<R>(offsets: ArrayLike<number>, of: (row: number, first: number, end: number) => R): R[] {
  return Array.from({ length: offsets.length - 1 }, (_, row) => of(row, offsets[row]!, offsets[row + 1]!));
}

/** The trained tokens (mask = 1) in first <= t < end. */
export function trainedIn(mask: ArrayLike<number>, first: number, end: number): number[] {
  const tokens: number[] = [];
  for (let t = first; t < end; t++) if (mask[t] !== 0) tokens.push(t);
  return tokens;
}

/** Tokens in all rows, T. */
export function totalTokens(offsets: Uint32Array): number {
  return offsets[offsets.length - 1]!;
}

/** Row of every token, [T]. */
export function rowsOfTokens(offsets: Uint32Array): Uint32Array {
  const rows = new Uint32Array(totalTokens(offsets));
  forEachRow(offsets, (row, first, end) => rows.fill(row, first, end));
  return rows;
}

/** Row of one token, by bisection; rows without tokens are passed over. */
export function rowAt(offsets: Uint32Array, token: number): number {
  let low = 0;
  let high = offsets.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle]! <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Numbers of each token as one list per row. */
export function unpack(values: ArrayLike<number>, offsets: Uint32Array): number[][] {
  const list = Array.from(values);
  return mapRows(offsets, (_, first, end) => list.slice(first, end));
}
