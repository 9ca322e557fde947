/** Rows of logits that several targets share: copied for each of them, in windows, and their gradients added up again. */
import type { Buffer } from "../../compute/device.ts";
import { embedding, embeddingBackward } from "../kernels/embedding.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import type { RowRun } from "../row_windows.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { TargetGroups } from "./targets.ts";

/** Logits of the targets [first, first + rows), a row for each. */
export interface TargetLogits extends RowRun {
  readonly logits: Buffer;
}

/**
 * A product with the output matrix takes C multiplications per logit, a copy none: with K targets per position a pass
 * multiplies T rows, not K T. Rows keep their bits, so a target's log-prob does not depend on the targets beside it.
 */
export class LogitCopies {
  private readonly model: Transformer;
  private readonly groups: TargetGroups;
  private readonly scratch: Scratch;
  private readonly copies: Buffer;
  private sums: Buffer | undefined;

  constructor(model: Transformer, { groups, scratch }: { groups: TargetGroups; scratch: Scratch }) {
    this.model = model;
    this.groups = groups;
    this.scratch = scratch;
    this.copies = this.window(groups.offsets.at(-1)!, "logits of targets");
  }

  /** The copies of a window's rows. Each overwrites the one before it. */
  *of(window: RowRun, logits: Buffer): Generator<TargetLogits> {
    const { offsets } = this.groups;
    const [start, end] = [offsets[window.first]!, offsets[window.first + window.rows]!];
    for (const run of logitWindows(this.model, end - start)) {
      const part = { first: start + run.first, rows: run.rows, logits: this.copies };
      this.copy(part, { window, logits });
      yield part;
    }
  }

  private copy(part: RowRun, { window, logits }: { window: RowRun; logits: Buffer }): void {
    const { rows, offsets } = this.groupsOf(part, window);
    const tokens = new Uint32Array(part.rows);
    for (const [u, row] of rows.entries()) tokens.fill(row, offsets[u], offsets[u + 1]);
    const places = this.scratch.upload(tokens, "rows of targets");
    this.model.device.dispatch(embedding, {
      buffers: { tokens: places, table: logits, out: this.copies },
      params: { tokens: part.rows, width: this.stride, first_row: 0, row_count: 2 ** 32 - 1 },
    });
    this.scratch.free(places);
  }

  /** Gradients of a window's logits, summed over the targets of each row. Valid after {@link clear}. */
  get gradients(): Buffer {
    return this.sums!;
  }

  clear(): void {
    this.sums ??= this.window(this.groups.rows.length, "gradients of logits");
    this.model.device.clear(this.sums);
  }

  /** Adds the gradients of a part, which took the place of its copies. */
  addGradients(part: RowRun, window: RowRun): void {
    const groups = this.groupsOf(part, window);
    const buffers = {
      rows: this.scratch.upload(groups.rows, "rows"),
      offsets: this.scratch.upload(groups.offsets, "row offsets"),
      positions: this.scratch.upload(
        Uint32Array.from({ length: part.rows }, (_, i) => i),
        "row positions",
      ),
    };
    this.model.device.dispatch(embeddingBackward, {
      buffers: { ...buffers, outGrad: this.copies, tableGrad: this.gradients },
      params: { rows: groups.rows.length, width: this.stride, first_row: 0, row_count: 2 ** 32 - 1 },
    });
    this.scratch.free(...Object.values(buffers));
  }

  /** The window's rows that have targets in the part, from 0, and where those of each start in the part. */
  private groupsOf(part: RowRun, window: RowRun): TargetGroups {
    const rows: number[] = [];
    const starts: number[] = [];
    for (let p = window.first; p < window.first + window.rows; p++) {
      const start = Math.max(this.groups.offsets[p]!, part.first);
      if (start >= Math.min(this.groups.offsets[p + 1]!, part.first + part.rows)) continue;
      rows.push(p - window.first);
      starts.push(start - part.first);
    }
    return { rows: Uint32Array.from(rows), offsets: Uint32Array.from([...starts, part.rows]) };
  }

  release(): void {
    this.scratch.free(this.copies, ...(this.sums ? [this.sums] : []));
  }

  private get stride(): number {
    return logitStride(this.model.config.vocabSize);
  }

  /** A buffer for the largest window of so many rows. */
  private window(count: number, label: string): Buffer {
    return this.scratch.floats((logitWindows(this.model, count)[0]?.rows ?? 0) * this.stride, label);
  }
}
