/** Supervised fine-tuning: optimiser steps on packed examples, with validations and checkpoints between them. */
import type { Backend, Metrics } from "../../contract/backend.ts";
import { RowOrder } from "../../data/row_order.ts";
import type { Task } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import { bestOf } from "../best.ts";
import type { LoopState, Run, TrainOutcome } from "../contract.ts";
import { type Course, drive } from "../drive.ts";
import { warnOnce } from "../run.ts";
import { type LoopSettings, loopSettings, type Partly } from "../settings.ts";
import { optimParams } from "../stages/learning_rate.ts";
import { supervisedBatch } from "./batch.ts";
import type { EncodedRow } from "./encode.ts";
import { supervisedStep } from "./update.ts";
import { checkBestMetric, heldOutLoss } from "./validate.ts";

/** What {@link sft} needs; the rest has defaults. */
export interface SftOptions extends Pick<Run, "checkpoints">, Partial<Pick<Run, "loggers" | "signal" | "warn">> {
  readonly backend: Backend;
  /** Of {@link encodeRows}. Held-out rows are validated on; absent: no validation. */
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
  return drive((before) => courseOf({ ...options, ...(before && { warn: before.warn }) }));
}

function courseOf(options: SftOptions): Course {
  const { backend, rows, loggers = [], checkpoints, signal = new AbortController().signal } = options;
  const given = sftSettings(options.settings);
  const order = orderOf(rows.train, { ...options, settings: given });
  const total = stepsOf(order, given);
  const { test_freq } = given.trainer;
  const trainer = { ...given.trainer, val_only: false, test_freq: test_freq > 0 ? test_freq : total };
  const settings = { ...given, trainer, warmup: { ...given.warmup, steps: 0 } };
  const warn = options.warn ?? warnOnce(loggers);
  backend.onWarning?.(warn);
  const parts: Parts = { backend, rows, order, settings, loggers, signal, total };
  return {
    ...{ backend, settings, loggers, checkpoints, signal, warn, total },
    tasks: { train: rows.train.map(taskOf), val: (rows.val ?? []).map(taskOf) },
    warmUp: async (state) => state,
    step: (state) => step(parts, state),
    validate: (state) => validate(parts, state),
  };
}

/**
 * Steps of a run: `trainer.total_batches`, else those of `trainer.total_epochs` epochs.
 * @throws {ConfigError} for fewer rows than a batch takes
 */
export function totalSftSteps(options: Pick<SftOptions, "rows" | "settings" | "batchTokens" | "isShuffled">): number {
  const settings = sftSettings(options.settings);
  return stepsOf(orderOf(options.rows.train, { ...options, settings }), settings);
}

/** Checks at the start what a validation would find out after the last step. */
function sftSettings(given: SftOptions["settings"]): LoopSettings {
  const settings = loopSettings(given);
  checkBestMetric(settings.training.metric_for_best_model);
  return settings;
}

function stepsOf(order: RowOrder, { trainer: { total_batches, total_epochs } }: LoopSettings): number {
  return total_batches > 0 ? total_batches : order.stepsIn(total_epochs);
}

interface Parts extends Pick<Course, "backend" | "settings" | "loggers" | "signal" | "total"> {
  readonly rows: SftOptions["rows"];
  readonly order: RowOrder;
}

/** @throws {ConfigError} when a batch takes more rows than there are, and for a token budget that is no whole number from 1 */
function orderOf(
  rows: readonly EncodedRow[],
  {
    settings,
    batchTokens,
    isShuffled = true,
  }: Pick<SftOptions, "batchTokens" | "isShuffled"> & { readonly settings: LoopSettings },
): RowOrder {
  const { train_batch_size, seed } = settings.data;
  if (batchTokens !== undefined && !(Number.isInteger(batchTokens) && batchTokens >= 1))
    throw new ConfigError(
      `Cannot draw batches: batchTokens must be a whole number from 1 (${batchTokens}). Correct it.`,
      {
        path: "data.train_batch_tokens",
      },
    );
  if (rows.length === 0)
    throw new ConfigError(
      "Cannot train: no training row is left. With data.truncation=skip, rows of more than data.max_length tokens are left out, and data.val_set_size and data.train_max_samples take rows away. Raise data.max_length, cut long rows with data.truncation=right, or give more rows.",
      { path: "data.train_files" },
    );
  const least = batchTokens === undefined ? train_batch_size : 1;
  if (rows.length < least)
    throw new ConfigError(
      `Cannot draw batches: one needs ${least} rows, and the training data has ${rows.length}. Add rows, or lower data.train_batch_size.`,
      { path: "data.train_batch_size" },
    );
  const lengths = rows.map(({ ids }) => ids.length);
  return new RowOrder({ lengths, seed, isShuffled, rows: train_batch_size, tokens: batchTokens });
}

/** By its tokens, so that a checkpoint knows other data. */
function taskOf({ file, line, ids, mask, weights }: EncodedRow): Task {
  return { id: `${file}:${line}`, instruction: "", metadata: { ids, mask, weights } };
}

async function step({ backend, rows, order, settings, loggers, total }: Parts, state: LoopState): Promise<LoopState> {
  const started = performance.now();
  const done = state.step + 1;
  const { rows: taken, epoch } = order.batch(state.step);
  const batch = supervisedBatch(Array.from(taken, (row) => rows.train[row]!));
  const params = optimParams({ settings, step: done, totalSteps: total });
  const measured = await supervisedStep(backend, batch, { params });
  const seconds = (performance.now() - started) / 1000;
  const tokens = batch.tokens.length;
  const metrics = {
    ...prefixed("train/", measured),
    "train/global_tokens": tokens,
    "train/total_tokens(B)": order.tokensBefore(done) / 1e9,
    "training/global_step": done,
    "training/epoch": epoch,
    "progress/done_frac": done / total,
    "time/step": seconds,
    "perf/total_num_tokens": tokens,
    "perf/throughput": tokens / seconds,
  };
  const note = params.learning_rate === 0 && { note: "the learning rate is 0 (train/lr): the weights do not change" };
  for (const logger of loggers) await logger.log({ phase: "train", step: done, totalSteps: total, metrics, ...note });
  return { ...state, step: done };
}

function prefixed(prefix: string, metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [prefix + name, value]));
}

async function validate(parts: Parts, state: LoopState): Promise<LoopState> {
  const { rows, settings, loggers, total } = parts;
  const started = performance.now();
  const measured = await heldOutLoss(rows.val ?? [], parts);
  const metrics = { ...measured, "time/testing": (performance.now() - started) / 1000 };
  // Before anything is logged, because it throws where the backend does not tell the accuracy.
  const best = bestOf(state, { metrics: measured, training: settings.training });
  for (const logger of loggers) await logger.log({ phase: "val", step: state.step, totalSteps: total, metrics });
  return { ...state, validated: state.step, ...best };
}
