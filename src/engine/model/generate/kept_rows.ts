/**
 * The rows of a call's decoding chunks, kept from one chunk to the next, and with them the dispatches of a step, which are recorded
 * again while they would be the same: for as many rows, with tables of as many pages, the same filters and weights in the same state.
 * Then only what the buffers of the rows hold changes. A buffer of others that was replaced (a cache, weights, rotary
 * tables) and memory that was needed elsewhere are found by the device.
 */
import type { Device, KeptWork } from "../../compute/device.ts";
import { Scratch } from "../scratch.ts";
import type { Weights } from "../weights.ts";
import { filtersOfRows, type RowsInput, rewriteRows, tableTokens, uploadRows } from "./chunk.ts";
import type { Sequence } from "./sequence.ts";
import type { DecodeRows } from "./step_input.ts";

/** Facts that determine the shape of dispatches, in a fixed order. */
type Shape = readonly (object | number | boolean)[];

interface Kept {
  readonly shape: Shape;
  readonly rows: DecodeRows;
  readonly scratch: Scratch;
  running: readonly Sequence[];
  work?: KeptWork | undefined;
}

export class KeptRows {
  private readonly device: Device;
  private kept: Kept | undefined;

  constructor(device: Device) {
    this.device = device;
  }

  /** Rows for a chunk, valid until the next one. @param at.stride most steps of such chunks */
  rows(
    running: readonly Sequence[],
    at: Omit<RowsInput, "scratch"> & { weights: Weights; stride: number },
  ): DecodeRows {
    const shape = shapeOf(running, at);
    const { kept } = this;
    if (!kept || !isSame(kept.shape, shape)) return this.replace(running, { ...at, shape });
    rewriteRows(kept.rows, running, { ...at, device: this.device, isMoved: !isSame(kept.running, running) });
    kept.running = running;
    return { ...kept.rows, steps: at.steps };
  }

  private replace(running: readonly Sequence[], at: Omit<RowsInput, "scratch"> & { shape: Shape }): DecodeRows {
    const before = this.kept;
    this.kept = Scratch.unlessThrown(this.device, (scratch) => {
      const rows = uploadRows(running, { ...at, scratch });
      return { shape: at.shape, rows, scratch, running };
    });
    // Not earlier: the rows here may begin with tokens there.
    release(before);
    return this.kept.rows;
  }

  /** Records the steps of a chunk of the rows that were returned last. @param step records one */
  record(steps: number, step: (shift: number) => void): void {
    const kept = this.kept!;
    if (kept.work?.record({ times: steps, param: "shift", from: 0 })) return;
    kept.work?.release();
    for (let shift = 0; shift < steps; shift++) {
      const mark = this.device.mark();
      step(shift);
      // The first step may build what later ones find.
      if (shift !== 1) continue;
      kept.work = this.device.keep?.(mark);
      if (kept.work?.record({ times: steps - 2, param: "shift", from: 2 })) return;
    }
  }

  /** Forgets everything. Work that is recorded still uses it. */
  release(): void {
    release(this.kept);
    this.kept = undefined;
  }
}

function release(kept: Kept | undefined): void {
  kept?.work?.release();
  kept?.scratch.release();
}

function shapeOf(
  running: readonly Sequence[],
  at: Pick<RowsInput, "drawn" | "steps"> & { weights: Weights; stride: number },
): Shape {
  const { topK, topP } = filtersOfRows(running);
  return [running.length, tableTokens(running, at), at.stride, topK, topP, ...at.weights.state()];
}

function isSame(shape: readonly unknown[], other: readonly unknown[]): boolean {
  return shape.length === other.length && shape.every((item, i) => item === other[i]);
}
