/** Rows of logits in segments of the vocabulary, one for a workgroup, as head/parts/segments.wgsl cuts them. */
import { folded, type Grid } from "../../compute/kernel.ts";

/** Logits of a segment. */
export const SEGMENT = 2048;

/** Segments of a row, which depend on the vocabulary only: so does the order of every sum. */
export function segmentCount(vocabulary: number): number {
  return Math.ceil(vocabulary / SEGMENT);
}

interface Rows {
  readonly rows: number;
  readonly vocabulary: number;
  readonly stride: number;
}

/** A workgroup per (row, segment). */
export function segmentGrid({ rows, vocabulary }: Omit<Rows, "stride">): Grid {
  return folded(rows * segmentCount(vocabulary));
}

interface Segment {
  readonly row: number;
  /** First id of the segment. */
  readonly first: number;
  /** Elements [from, end) of the logits. */
  readonly from: number;
  readonly end: number;
}

/** Calls `body` for every (row, segment), in the order of the workgroups. */
export function forEachSegment(
  { rows, vocabulary, stride }: Rows,
  body: (index: number, segment: Segment) => void,
): void {
  const count = segmentCount(vocabulary);
  for (let index = 0; index < rows * count; index++) {
    const row = Math.floor(index / count);
    const first = (index - row * count) * SEGMENT;
    const from = row * stride;
    body(index, { row, first, from: from + first, end: from + Math.min(first + SEGMENT, vocabulary) });
  }
}

/**
 * Returns three numbers of x = logits / temperature: the highest, the sum of exp(x - highest), and the sum of these
 * times x - highest.
 */
export function softmaxOf(logits: Float32Array, inverseTemperature: number): [number, number, number] {
  let highest = -1e30;
  for (const logit of logits) highest = Math.max(highest, logit * inverseTemperature);
  let [total, weighted] = [0, 0];
  for (const logit of logits) {
    const shifted = logit * inverseTemperature - highest;
    total += Math.exp(shifted);
    weighted += Math.exp(shifted) * shifted;
  }
  return [highest, total, weighted];
}
