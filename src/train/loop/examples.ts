/** Training on given rows: batches in the order of epochs, with validations and checkpoints between the steps. */
import type { Metrics, OptimParams } from "../../engine/contract/backend.ts";
import type { Resumable } from "../../engine/contract/reward_model.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { RowOrder } from "../data/row_order.ts";
import type { Task } from "../data/types.ts";
import { bestOf } from "./best.ts";
import type { LoopState, Run } from "./contract.ts";
import type { Course } from "./drive.ts";
import { warnOnce } from "./run.ts";
import type { LoopSettings } from "./settings.ts";
import { optimParams } from "./stages/learning_rate.ts";
import { utilisation } from "./utilisation.ts";

/** Choice of the rows that a step takes. */
export interface RowChoice<R> {
  readonly rows: { readonly train: readonly R[]; readonly val?: readonly R[] | undefined };
  /** Most tokens of a batch, in place of `data.train_batch_size` rows. */
  readonly batchTokens?: number | undefined;
  /** False: every epoch takes the rows in their own order. Default true. */
  readonly isShuffled?: boolean | undefined;
  readonly settings: LoopSettings;
  /** Tokens of a row. */
  tokensOf(row: R): number;
}

/** A run over rows, with what a step and a validation do. */
export interface ExampleRun<R>
  extends RowChoice<R>,
    Pick<Run, "checkpoints">,
    Partial<Pick<Run, "loggers" | "signal" | "warn" | "onPhase">> {
  readonly backend: Resumable;
  /** Returns the row as a task identified by its content, so that a checkpoint recognises other data. */
  taskOf(row: R): Task;
  /** One optimiser step. Metrics have their whole names; the learning rate is `train/lr`. */
  train(rows: readonly R[], params: OptimParams): Promise<Metrics>;
  /** The held-out metrics of rows. */
  measure(rows: readonly R[], signal: AbortSignal): Promise<Metrics>;
}

/** The course of a run over rows. `trainer.test_freq` below 1 validates at the end. */
export function exampleCourse<R>(run: ExampleRun<R>): Course {
  const { backend, rows, loggers = [], checkpoints, signal = new AbortController().signal } = run;
  const order = orderOf(run);
  const total = stepsOf(order, run.settings);
  const { test_freq } = run.settings.trainer;
  const trainer = { ...run.settings.trainer, val_only: false, test_freq: test_freq > 0 ? test_freq : total };
  const settings = { ...run.settings, trainer, warmup: { ...run.settings.warmup, steps: 0 } };
  const warn = run.warn ?? warnOnce(loggers);
  backend.onWarning?.(warn);
  const parts: Parts<R> = { ...run, settings, loggers, signal, order, total };
  return {
    ...{ backend, settings, loggers, checkpoints, signal, warn, total, onPhase: run.onPhase },
    tasks: { train: rows.train.map(run.taskOf), val: (rows.val ?? []).map(run.taskOf) },
    warmUp: async (state) => state,
    step: (state) => step(parts, state),
    validate: (state) => validate(parts, state),
  };
}

/**
 * Steps of a run: `trainer.total_batches`, else those of `trainer.total_epochs` epochs.
 * @throws {ConfigError} for fewer rows than a batch takes
 */
export function totalExampleSteps<R>(choice: RowChoice<R>): number {
  return stepsOf(orderOf(choice), choice.settings);
}

function stepsOf(order: RowOrder, { trainer: { total_batches, total_epochs } }: LoopSettings): number {
  return total_batches > 0 ? total_batches : order.stepsIn(total_epochs);
}

interface Parts<R> extends Omit<ExampleRun<R>, "loggers" | "signal">, Pick<Course, "loggers" | "signal" | "total"> {
  readonly order: RowOrder;
}

/** @throws {ConfigError} when a batch takes more rows than there are, and for a token budget that is no whole number from 1 */
function orderOf<R>({ rows, settings, batchTokens, isShuffled = true, tokensOf }: RowChoice<R>): RowOrder {
  const { train_batch_size, seed } = settings.data;
  if (batchTokens !== undefined && !(Number.isInteger(batchTokens) && batchTokens >= 1))
    throw new ConfigError(
      `Cannot draw batches: batchTokens must be a whole number from 1 (${batchTokens}). Correct it.`,
      {
        path: "data.train_batch_tokens",
      },
    );
  const count = rows.train.length;
  if (count === 0)
    throw new ConfigError(
      "Cannot train: no training row is left. With data.truncation=skip, rows of more than data.max_length tokens are left out, and data.val_set_size and data.train_max_samples take rows away. Raise data.max_length, cut long rows with data.truncation=right, or give more rows.",
      { path: "data.train_files" },
    );
  const least = batchTokens === undefined ? train_batch_size : 1;
  if (count < least)
    throw new ConfigError(
      `Cannot draw batches: one needs ${least} rows, and the training data has ${count}. Add rows, or lower data.train_batch_size.`,
      { path: "data.train_batch_size" },
    );
  return new RowOrder({
    lengths: rows.train.map(tokensOf),
    seed,
    isShuffled,
    rows: train_batch_size,
    tokens: batchTokens,
  });
}

async function step<R>(run: Parts<R>, state: LoopState): Promise<LoopState> {
  const { rows, order, settings, loggers, total } = run;
  const started = performance.now();
  const done = state.step + 1;
  const { rows: taken, epoch } = order.batch(state.step);
  const batch = Array.from(taken, (row) => rows.train[row]!);
  const measured = await run.train(batch, optimParams({ settings, step: state.step, totalSteps: total }));
  const seconds = (performance.now() - started) / 1000;
  const tokens = batch.reduce((sum, row) => sum + run.tokensOf(row), 0);
  const metrics: Metrics = {
    ...measured,
    "train/global_tokens": tokens,
    "train/total_tokens(B)": order.tokensBefore(done) / 1e9,
    "training/global_step": done,
    "training/epoch": epoch,
    "progress/done_frac": done / total,
    "time/step": seconds,
    "perf/total_num_tokens": tokens,
    "perf/time_per_step": seconds,
    "perf/throughput": tokens / seconds,
    ...(await utilisation(run.backend, seconds)),
  };
  const note = metrics["train/lr"] === 0 && { note: "the learning rate is 0 (train/lr): the weights do not change" };
  for (const logger of loggers) await logger.log({ phase: "train", step: done, totalSteps: total, metrics, ...note });
  return { ...state, step: done };
}

async function validate<R>(run: Parts<R>, state: LoopState): Promise<LoopState> {
  const { rows, settings, loggers, total, signal } = run;
  const started = performance.now();
  const measured = await run.measure(rows.val ?? [], signal);
  const metrics = { ...measured, "time/testing": (performance.now() - started) / 1000 };
  // Before anything is logged, because it throws where the backend does not tell the accuracy.
  const best = bestOf(state, { metrics: measured, training: settings.training });
  for (const logger of loggers) await logger.log({ phase: "val", step: state.step, totalSteps: total, metrics });
  return { ...state, validated: state.step, ...best };
}

/**
 * Checks at the start what a validation would find out after the last step.
 * @throws {ConfigError} for a name that no held-out validation measures
 */
export function checkBestMetric(name: string | null, measured: readonly string[]): void {
  if (name === null || measured.includes(name)) return;
  throw new ConfigError(
    `Cannot choose the best checkpoint: held-out rows have no metric ${name}. Set trainer.metric_for_best_model to one of ${measured.join(", ")}, or to null.`,
    { path: "trainer.metric_for_best_model" },
  );
}
