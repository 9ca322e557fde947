/** Training of a pairwise reward model: the chosen answer of each pair is to have the larger score. */
import { type RewardModelSpec, rewardModelLoss } from "../../../engine/algorithm/mod.ts";
import type { Metrics, OptimParams, PackedTokens } from "../../../engine/contract/backend.ts";
import type { RewardModel } from "../../../engine/contract/reward_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import type { Run, TrainOutcome } from "../contract.ts";
import type { EncodedPreference } from "../dpo/encode.ts";
import { drive } from "../drive.ts";
import { checkBestMetric, exampleCourse, totalExampleSteps } from "../examples.ts";
import { type LoopSettings, loopSettings, type Partly } from "../settings.ts";
import { supervisedBatch } from "../sft/batch.ts";
import type { EncodedRow } from "../sft/encode.ts";

/** Options of {@link trainRewardModel}; those that have defaults may be absent. */
export interface RewardModelRunOptions
  extends Pick<Run, "checkpoints">,
    Partial<Pick<Run, "loggers" | "signal" | "warn" | "onPhase">> {
  readonly backend: RewardModel;
  /** Pairs of {@link encodePreferences}. Held-out ones are validated on; absent: no validation. */
  readonly rows: {
    readonly train: readonly EncodedPreference[];
    readonly val?: readonly EncodedPreference[] | undefined;
  };
  readonly loss?: Pick<RewardModelSpec, "center_rewards_coefficient">;
  /** Those of a training run that act in {@link SftOptions}. A batch is a number of pairs. */
  readonly settings?: Partly<LoopSettings>;
  /** Most tokens of a batch, in place of `data.train_batch_size`. */
  readonly batchTokens?: number | undefined;
  /** False: every epoch takes the pairs in their own order. Default true. */
  readonly isShuffled?: boolean | undefined;
}

/**
 * Trains a reward model to the last step, or until the signal aborts. A row is scored at the token that ends its answer. A resumed run
 * equals an uninterrupted one bit for bit.
 * @throws {ConfigError} for rows that are no pairs, fewer of them than a batch takes, a coefficient below 0, and a
 * `metric_for_best_model` that held-out pairs do not have
 * @see TRL RewardTrainer
 */
export function trainRewardModel(options: RewardModelRunOptions): Promise<TrainOutcome> {
  const { backend, loss = {} } = options;
  return drive((before) =>
    exampleCourse({
      ...options,
      ...(before && { warn: before.warn }),
      settings: rewardModelSettings(options),
      tokensOf,
      taskOf,
      train: (pairs, params) => rewardModelStep(pairs, { backend, loss, params }),
      measure: async (pairs, signal) => {
        const { dscores: _, loss: value, metrics } = await scorePairs(pairs, { backend, loss, signal });
        return prefixed("val/", { loss: value, ...metrics });
      },
    }),
  );
}

/**
 * Steps of a run: `trainer.total_batches`, else those of `trainer.total_epochs` epochs.
 * @throws {ConfigError} as {@link trainRewardModel}
 */
export function totalRewardModelSteps(options: Omit<RewardModelRunOptions, "backend" | "checkpoints">): number {
  return totalExampleSteps({ ...options, settings: rewardModelSettings(options), tokensOf });
}

const MEASURED = ["loss", "accuracy", "margin", "mean_reward", "min_reward", "max_reward"];

function rewardModelSettings({
  settings: settingsOption,
  rows,
  loss = {},
}: Omit<RewardModelRunOptions, "backend">): LoopSettings {
  const settings = loopSettings(settingsOption);
  // Checks the coefficient.
  rewardModelLoss({ scores: [0, 0] }, loss);
  checkBestMetric(
    settings.training.metric_for_best_model,
    MEASURED.map((name) => `val/${name}`),
  );
  for (const pair of [...rows.train, ...(rows.val ?? [])]) checkPair(pair);
  return settings;
}

function checkPair({ rows, label, file, line }: EncodedPreference): void {
  if (label === undefined && rows.length === 2) return;
  throw new ConfigError(
    "Cannot train the reward model: it takes pairs (prompt, chosen, rejected), and this row is none.",
    { file, line },
  );
}

/** Rows scored in one call; the model cuts a call into passes that fit its memory. */
const ROWS = 128;

interface Scoring {
  readonly backend: RewardModel;
  readonly loss: Pick<RewardModelSpec, "center_rewards_coefficient">;
}

/** Scores pairs and takes the loss over all of them, in float64 on the host. */
async function scorePairs(
  pairs: readonly EncodedPreference[],
  { backend, loss, signal }: Scoring & { readonly signal?: AbortSignal },
) {
  const rows = pairs.flatMap((pair) => pair.rows);
  const scores_N = new Float32Array(rows.length);
  for (let from = 0; from < rows.length; from += ROWS) {
    signal?.throwIfAborted();
    scores_N.set(await backend.scores(packedAnswers(rows.slice(from, from + ROWS))), from);
  }
  checkScores(scores_N, rows);
  return rewardModelLoss({ scores: scores_N, margins: pairs.map(({ margin = 0 }) => margin) }, loss);
}

/** @throws {ConfigError} for a score that is not finite, with its row */
function checkScores(scores_N: Float32Array, rows: readonly EncodedRow[]): void {
  const broken = scores_N.findIndex((score) => !Number.isFinite(score));
  if (broken < 0) return;
  const { file, line } = rows[broken]!;
  throw new ConfigError(
    `Cannot train the reward model: the score of an answer of this row is not finite (${scores_N[broken]}). Lower optim.lr if training has diverged, else remove the row.`,
    { file, line },
  );
}

/**
 * One optimiser step. The loss couples the rows of a pair, so the step scores all rows, takes the slopes of the loss in the scores, and
 * gives them to the backward pass: a step that memory cuts into passes, wherever they end, has the same loss.
 */
async function rewardModelStep(
  pairs: readonly EncodedPreference[],
  { params, ...scoring }: Scoring & { readonly params: OptimParams },
): Promise<Metrics> {
  const { loss, dscores: dscores_N, metrics } = await scorePairs(pairs, scoring);
  const { backend } = scoring;
  await backend.backward(packedAnswers(pairs.flatMap((pair) => pair.rows)), Float32Array.from(dscores_N));
  const { grad_norm } = await backend.optimStep(params);
  return { "train/loss": loss, ...metrics, "train/grad_norm": grad_norm!, "train/lr": params.learning_rate };
}

/** The rows end to end. What a chat template writes behind the answer is left out: a sampled reply ends there. */
export function packedAnswers(rows: readonly EncodedRow[]): PackedTokens {
  return supervisedBatch(
    rows.map(({ ids, mask }) => {
      const end = mask.lastIndexOf(1) + 1;
      return { ids: ids.slice(0, end), mask: mask.slice(0, end) };
    }),
  );
}

function prefixed(prefix: string, metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [prefix + name, value]));
}

function tokensOf({ rows }: EncodedPreference): number {
  return rows.reduce((sum, { ids }) => sum + ids.length, 0);
}

function taskOf({ rows, margin, file, line }: EncodedPreference): Task {
  return {
    id: `${file}:${line}`,
    instruction: "",
    metadata: { margin, rows: rows.map(({ ids, mask }) => ({ ids, mask })) },
  };
}
