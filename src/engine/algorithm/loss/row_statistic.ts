/** Two numbers a and b per row, computed before the pass, for losses whose tokens are coupled through their row. */

import { sum } from "../../../leaves/statistics.ts";
import { defineKernel, folded, type Kernel } from "../../compute/kernel.ts";
import { loadShader } from "../../compute/shader.ts";
import { forEachRow, trainedIn } from "../../packing/offsets.ts";
import type { Streams } from "./pass.ts";
import { joinShader, paddedParams } from "./settings_struct.ts";
import type { LossSettings } from "./token.ts";

const ROWS_PER_GROUP = 64;

/** Rows are given, so tokens need not name theirs. */
export type RowStreams = Omit<Streams, "row">;

/** A row's trained tokens, with what they are summed by. */
export interface TrainedRow {
  readonly row: number;
  readonly streams: RowStreams;
  /** Trained tokens. */
  readonly n: number;
  sum(of: (t: number) => number): number;
  /** logprob - oldLogprob. */
  d(t: number): number;
  /** Importance weight; 1 where there are none. */
  weight(t: number): number;
}

/** A row's numbers a and b; b is 0 for statistics of one number. */
export interface RowNumbers {
  readonly a: number;
  readonly b: number;
}

const ROWS_BINDINGS = {
  logprobs: "read f32",
  old: "read f32",
  mask: "read u32",
  offsets: "read u32",
  advantages: "read f32",
  is_weights: "read f32",
  workspace: "write f32",
} as const;

/** Settings begin at a multiple of 16 bytes. */
const ROWS_PARAMS = { rows: "u32", row_stride: "u32", spare0: "u32", spare1: "u32" } as const;

/** A statistic of a row in both languages. */
export interface RowStatistic {
  readonly name: string;
  /** Those of the form's params that it reads. */
  readonly params: readonly string[];
  /** Returns the numbers of a row, in float64. */
  readonly numbers: (row: TrainedRow, params: LossSettings) => RowNumbers;
  readonly kernel: Kernel<typeof ROWS_BINDINGS, typeof ROWS_PARAMS>;
}

interface RowStatisticOptions<K extends string> {
  readonly name: string;
  readonly params: readonly K[];
  numbers(row: TrainedRow, params: Readonly<Record<K, number>>): RowNumbers;
  /** `fn row_numbers(row: u32, first: u32, end: u32) -> vec2f`; the functions that it calls are those of shaders/loss/rows.wgsl. */
  readonly wgsl: string;
}

export function rowStatistic<const K extends string>({
  name,
  params,
  numbers,
  wgsl,
}: RowStatisticOptions<K>): RowStatistic {
  const kernel = defineKernel({
    name: `loss/rows ${name}`,
    source: async () => joinShader(wgsl, params, await loadShader("loss/rows")),
    bindings: ROWS_BINDINGS,
    params: { ...ROWS_PARAMS, ...paddedParams(params) },
    constants: { OLD: 1, TOKEN_ADVANTAGE: 0, WEIGHT: 0 },
    tolerance: { relative: 2e-5, absolute: 2e-6 },
    grid: ({ rows }) => folded(Math.ceil(rows / ROWS_PER_GROUP)),
    reference(buffers, values, constants) {
      const { workspace, advantages, logprobs, mask } = buffers;
      const { row_stride } = values;
      const streams: RowStreams = {
        logprobs,
        mask,
        old: constants.OLD ? buffers.old : undefined,
        isWeights: constants.WEIGHT ? buffers.is_weights : undefined,
        advantage: (t, row) => (constants.TOKEN_ADVANTAGE ? advantages[t]! : workspace[row_stride + row]!),
      };
      forEachRow(buffers.offsets.subarray(0, values.rows + 1), (row, first, end) => {
        const sums = rowSums(streams, { row, first, end });
        const { a, b } = numbers(sums, values as unknown as Readonly<Record<K, number>>);
        workspace[2 * row_stride + row] = a;
        workspace[3 * row_stride + row] = b;
      });
    },
  });
  return { name, params, numbers: numbers as RowStatistic["numbers"], kernel: kernel as never };
}

/** The row whose tokens are first <= t < end. */
export function rowSums(
  streams: RowStreams,
  { row, first, end }: { row: number; first: number; end: number },
): TrainedRow {
  const { logprobs, old, isWeights, mask } = streams;
  const trained = trainedIn(mask, first, end);
  return {
    row,
    streams,
    n: trained.length,
    sum: (of) => sum(trained.map(of)),
    d: (t) => (old ? logprobs[t]! - old[t]! : 0),
    weight: (t) => (isWeights ? isWeights[t]! : 1),
  };
}
