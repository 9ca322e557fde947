/** Buffers that the kernels of a decoding step read and write. */
import type { Buffer } from "../../compute/device.ts";
import type { CachedRows } from "../blocks/block.ts";
import type { Filters } from "../kernels/sample_tiled.ts";
import type { Scratch } from "../scratch.ts";
import type { HostRows } from "./host_rows.ts";
import type { KeyValueCache } from "./key_value_cache.ts";

/** The sequences of a chunk of steps, one row each. */
export interface DecodeRows extends CachedRows {
  readonly seeds: Buffer;
  readonly settings: Buffer;
  /** Those of `settings`. */
  readonly filters: Filters;
  /** The last token of each row, [rows]; a step replaces it. */
  readonly next: Buffer;
  /** Results of all steps, [rows, stride], of each row the first `steps`. */
  readonly tokens: Buffer;
  readonly logprobs: Buffer;
  readonly steps: number;
  readonly stride: number;
  /** Present for rows that the host takes part in: `steps` is 1, and their logits fit one window. */
  readonly host?: HostRows | undefined;
}

export interface StepInput {
  readonly cache: KeyValueCache;
  readonly rows: DecodeRows;
  /** Number of the step within its chunk, from 0. */
  readonly shift: number;
  readonly scratch: Scratch;
}
