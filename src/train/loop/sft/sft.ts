/** Supervised fine-tuning: optimiser steps on packed examples, with validations and checkpoints between them. */
import type { Backend, Metrics } from "../../../engine/contract/backend.ts";
import type { Task } from "../../data/types.ts";
import type { Run, TrainOutcome } from "../contract.ts";
import { drive } from "../drive.ts";
import { checkBestMetric, exampleCourse, totalExampleSteps } from "../examples.ts";
import { type LoopSettings, loopSettings, type Partly } from "../settings.ts";
import { supervisedBatch } from "./batch.ts";
import type { EncodedRow } from "./encode.ts";
import { supervisedStep } from "./update.ts";
import { HELD_OUT_METRICS, heldOutLoss } from "./validate.ts";

/** Options of {@link sft}; those that have defaults may be absent. */
export interface SftOptions
  extends Pick<Run, "checkpoints">,
    Partial<Pick<Run, "loggers" | "signal" | "warn" | "onPhase">> {
  readonly backend: Backend;
  /** Rows of {@link encodeRows}. Held-out rows are validated on; absent: no validation. */
  readonly rows: { readonly train: readonly EncodedRow[]; readonly val?: readonly EncodedRow[] | undefined };
  /**
   * Those of a training run, of which these act: `data.train_batch_size`, `data.seed`, `trainer.*`, and of `training` the
   * optimiser's and the best checkpoint's. `trainer.test_freq` below 1 validates at the end.
   */
  readonly settings?: Partly<LoopSettings>;
  /** Most tokens of a batch, in place of `data.train_batch_size` rows. */
  readonly batchTokens?: number | undefined;
  /** False: every epoch takes the rows in their own order. Default true. */
  readonly isShuffled?: boolean | undefined;
}

/**
 * Trains on examples to the last step, or until the signal aborts. A resumed run equals an uninterrupted one bit for bit.
 * @throws {ConfigError} for fewer rows than a batch takes, and a `metric_for_best_model` that no held-out row has
 * @see train for how runs are saved, resumed and brought back after the loss of a device
 */
export function sft(options: SftOptions): Promise<TrainOutcome> {
  const { backend } = options;
  return drive((before) =>
    exampleCourse({
      ...options,
      ...(before && { warn: before.warn }),
      settings: sftSettings(options.settings),
      tokensOf,
      taskOf,
      train: async (rows, params) =>
        prefixed("train/", await supervisedStep(backend, supervisedBatch(rows), { params })),
      measure: (rows, signal) => heldOutLoss(rows, { backend, signal }),
    }),
  );
}

/**
 * Steps of a run: `trainer.total_batches`, else those of `trainer.total_epochs` epochs.
 * @throws {ConfigError} for fewer rows than a batch takes
 */
export function totalSftSteps(options: Pick<SftOptions, "rows" | "settings" | "batchTokens" | "isShuffled">): number {
  return totalExampleSteps({ ...options, settings: sftSettings(options.settings), tokensOf });
}

function sftSettings(options: SftOptions["settings"]): LoopSettings {
  const settings = loopSettings(options);
  checkBestMetric(settings.training.metric_for_best_model, HELD_OUT_METRICS);
  return settings;
}

function tokensOf({ ids }: EncodedRow): number {
  return ids.length;
}

function taskOf({ file, line, ids, mask, weights }: EncodedRow): Task {
  return { id: `${file}:${line}`, instruction: "", metadata: { ids, mask, weights } };
}

function prefixed(prefix: string, metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [prefix + name, value]));
}
