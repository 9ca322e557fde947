/** Preference training: DPO and the losses around it, on pairs of answers or on labelled ones. */
import { type PreferenceSpec, planPreference } from "../../../engine/algorithm/mod.ts";
import type { Backend, LossSpec, Metrics, OptimParams } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import type { Run, TrainOutcome } from "../contract.ts";
import { drive } from "../drive.ts";
import { checkBestMetric, exampleCourse, totalExampleSteps } from "../examples.ts";
import { type LoopSettings, loopSettings, type Partly } from "../settings.ts";
import { gradientStep } from "../sft/update.ts";
import type { EncodedPreference } from "./encode.ts";
import { type PairScoring, ReferenceScores, scorePreferences } from "./scores.ts";

/** Options of {@link dpo}; those that have defaults may be absent. */
export interface DpoOptions
  extends Pick<Run, "checkpoints">,
    Partial<Pick<Run, "loggers" | "signal" | "warn" | "onPhase">> {
  readonly backend: Backend;
  /** Rows of {@link encodePreferences}. Held-out rows are validated on; absent: no validation. */
  readonly rows: {
    readonly train: readonly EncodedPreference[];
    readonly val?: readonly EncodedPreference[] | undefined;
  };
  /** The loss, under TRL's names. Default: DPO's `sigmoid` with a beta of 0.1. */
  readonly loss?: Pick<PreferenceSpec, "loss_type" | "settings">;
  /** Those of a training run that act in {@link SftOptions}. A batch is a number of pairs, or of labelled rows. */
  readonly settings?: Partly<LoopSettings>;
  /** Most tokens of a batch, in place of `data.train_batch_size`. */
  readonly batchTokens?: number | undefined;
  /** False: every epoch takes the rows in their own order. Default true. */
  readonly isShuffled?: boolean | undefined;
  /** Most tokens of a row. Default: the model's context. */
  readonly maxLength?: number | undefined;
}

/**
 * Trains on preferences to the last step, or until the signal aborts. The reference is the policy before the first step: the base
 * model under an adapter, else a copy of the weights. A resumed run equals an uninterrupted one bit for bit.
 * @throws {ConfigError} for an unknown loss or setting, preferences of another form than the loss takes, fewer of them than a batch
 * takes, and a `metric_for_best_model` that no held-out row has
 * @see TRL DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer
 */
export function dpo(options: DpoOptions): Promise<TrainOutcome> {
  const { backend, loss: spec = { loss_type: "sigmoid" }, maxLength = backend.model.contextLength } = options;
  const scoring: PairScoring = { backend, spec, maxLength, reference: new ReferenceScores() };
  return drive((before) =>
    exampleCourse({
      ...options,
      ...(before && { warn: before.warn }),
      settings: dpoSettings(options),
      tokensOf,
      taskOf,
      train: (preferences, params) => preferenceStep(preferences, scoring, params),
      measure: async (preferences, signal) => heldOut(await scorePreferences(preferences, scoring, signal)),
    }),
  );
}

/**
 * Steps of a run: `trainer.total_batches`, else those of `trainer.total_epochs` epochs.
 * @throws {ConfigError} as {@link dpo}
 */
export function totalDpoSteps(options: Omit<DpoOptions, "backend" | "checkpoints">): number {
  return totalExampleSteps({ ...options, settings: dpoSettings(options), tokensOf });
}

const SIDES = ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"];

function dpoSettings({
  settings: settingsOption,
  loss: spec = { loss_type: "sigmoid" },
  rows,
  batchTokens,
}: Omit<DpoOptions, "backend">): LoopSettings {
  const { loss, settings } = planPreference(spec);
  const runSettings = loopSettings(settingsOption);
  const measured = ["loss", ...SIDES, loss.unit === "pair" ? "rewards/accuracies" : "kl"];
  checkBestMetric(
    runSettings.training.metric_for_best_model,
    measured.map((name) => `val/${name}`),
  );
  for (const preference of [...rows.train, ...(rows.val ?? [])]) checkForm(preference, loss);
  if (loss.unit === "row") checkBaseline(loss.name, { settings: runSettings, batchTokens, held: rows.val?.length });
  // A reference is kept where a training run would keep one: for a KL term.
  return {
    ...runSettings,
    algorithm: { ...runSettings.algorithm, kl_beta: loss.hasReference ? (settings.beta ?? 1) : 0 },
  };
}

/** @throws {ConfigError} where the baseline of a step, or of the held-out rows, would come from one row and its own completion */
function checkBaseline(
  name: string,
  {
    settings,
    batchTokens,
    held,
  }: { settings: LoopSettings; batchTokens: number | undefined; held: number | undefined },
): void {
  const refuse = (why: string, path: string) =>
    new ConfigError(
      `Cannot train with the loss ${name}: its baseline pairs prompts with other rows' completions, and ${why}`,
      { path },
    );
  const size = settings.data.train_batch_size;
  if (batchTokens !== undefined)
    throw refuse(
      `a step of ${batchTokens} tokens may take one row. Set data.train_batch_size to 2 or more, in place of data.train_batch_tokens.`,
      "data.train_batch_tokens",
    );
  if (size < 2)
    throw refuse(`a step takes ${size} row. Set data.train_batch_size to 2 or more.`, "data.train_batch_size");
  if (held === 1) throw refuse("one row is held out. Hold out 2 or more, or none.", "data.val_files");
}

function checkForm({ rows, label, file, line }: EncodedPreference, loss: { name: string; unit: string }): void {
  const isRow = label !== undefined && rows.length === 1;
  if (loss.unit === "row" ? isRow : label === undefined && rows.length === 2) return;
  const wanted = loss.unit === "row" ? "labelled rows (prompt, completion, label)" : "pairs (prompt, chosen, rejected)";
  throw new ConfigError(`Cannot train with the loss ${loss.name}: it takes ${wanted}, and this row is none.`, {
    file,
    line,
  });
}

/** The loss whose gradient is the one that its weights say. */
const GIVEN_GRADIENT: LossSpec = {
  name: "cross_entropy",
  loss_agg_mode: "token-sum",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};

/**
 * One optimiser step. A preference loss couples rows, so the step scores all of them, takes the loss and its slope in each
 * log-prob, and gives the slopes as the weights of a cross-entropy: the sum of -w log p has the gradient of the loss. Thus a step that
 * memory cuts into passes, wherever they end, has the same loss.
 */
async function preferenceStep(
  preferences: readonly EncodedPreference[],
  scoring: PairScoring,
  params: OptimParams,
): Promise<Metrics> {
  const { backend } = scoring;
  const { batch, loss, dlogprobs, metrics } = await scorePreferences(
    preferences,
    scoring,
    new AbortController().signal,
  );
  const weights_T = Float32Array.from(dlogprobs, (slope) => -slope);
  checkSlopes(weights_T, { preferences, loss: scoring.spec.loss_type, offsets: batch.offsets });
  const [, optim] = await gradientStep(backend, {
    batch: { ...batch, weights: weights_T },
    loss: GIVEN_GRADIENT,
    params,
  });
  const { "actor/grad_norm": norm, "actor/lr": lr = params.learning_rate } = optim;
  return { "train/loss": loss, ...metrics, ...(norm !== undefined && { "train/grad_norm": norm }), "train/lr": lr };
}

/** @throws {ConfigError} for a slope beyond float32, with the row that it belongs to */
function checkSlopes(
  weights_T: Float32Array,
  { preferences, loss, offsets }: { preferences: readonly EncodedPreference[]; loss: string; offsets: Uint32Array },
): void {
  const broken = weights_T.findIndex((weight) => !Number.isFinite(weight));
  if (broken < 0) return;
  const rows = preferences.flatMap((preference) => preference.rows);
  const { file, line } = rows[offsets.findIndex((end) => end > broken) - 1]!;
  throw new ConfigError(
    `Cannot train with the loss ${loss}: the slope in a log-prob of this row is not finite in float32 (${weights_T[broken]}). Remove the row, or lower beta or the loss's weights.`,
    { file, line },
  );
}

function heldOut({ loss, metrics }: { readonly loss: number; readonly metrics: Metrics }): Metrics {
  return Object.fromEntries(Object.entries({ loss, ...metrics }).map(([name, value]) => [`val/${name}`, value]));
}

function tokensOf({ rows }: EncodedPreference): number {
  return rows.reduce((sum, { ids }) => sum + ids.length, 0);
}

function taskOf({ rows, label, file, line }: EncodedPreference): Task {
  return {
    id: `${file}:${line}`,
    instruction: "",
    metadata: { label, rows: rows.map(({ ids, mask }) => ({ ids, mask })) },
  };
}
