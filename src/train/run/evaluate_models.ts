/** One model after the other, so that one at a time is in memory. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { ConfigError } from "../../leaves/errors.ts";
import { setting } from "../config/schema.ts";
import type { Episode } from "../data/types.ts";
import { knownEpisodes } from "../evaluation/remembered.ts";
import { AttemptLogger } from "./evaluation/attempt_logger.ts";
import { contentKey } from "./evaluation/content_key.ts";
import { KnownAttempts } from "./evaluation/known_attempts.ts";
import type { NamedModel } from "./evaluation/named_models.ts";
import { packageVersion } from "./files.ts";
import { gatewaySettings } from "./gateway/gateway_settings.ts";
import { openRecording } from "./gateway/recorded_rollout.ts";
import type { RunIo } from "./io.ts";
import { adoptCheckpoint } from "./model/checkpoint_shape.ts";
import { type EvaluationData, evalRecipe } from "./recipes/eval.ts";
import { withOpened } from "./run_recipe.ts";
import type { RunSession } from "./session.ts";

export interface ModelEvaluation {
  readonly io: RunIo;
  readonly data: EvaluationData;
  /** Folder of known attempts; undefined: every attempt is made. */
  readonly cache: string | undefined;
}

/** A model with its attempts: all of them, or those that had ended when the evaluation was stopped. */
export interface ModelAttempts {
  readonly name: string;
  readonly episodes: readonly Episode[];
  /** Attempts of earlier evaluations among them. */
  readonly known: number;
}

/** The attempts of each model; those until the signal, when it aborts. */
export async function evaluateModels(
  models: readonly NamedModel[],
  evaluation: ModelEvaluation,
): Promise<ModelAttempts[]> {
  const { io, data } = evaluation;
  const { session } = data;
  await checkAll(models, session);
  const notify = (line: string) => io.err(`gateway: ${line}\n`);
  const evaluated: ModelAttempts[] = [];
  await session.gateway?.open(notify);
  const recording = await openRecording(gatewaySettings(session.config), notify);
  try {
    for (const model of models) {
      if (io.signal.aborted) break;
      evaluated.push(await evaluateModel(model, { ...evaluation, data: { ...data, recording } }));
    }
  } finally {
    await session.gateway?.close();
    await recording?.close();
  }
  return evaluated;
}

/** Finds what is wrong with the last model before the first one has taken its hours. */
async function checkAll(models: readonly NamedModel[], session: RunSession): Promise<void> {
  if (setting(session.config, "rllm.backend") !== "local") return;
  for (const { checkpoint } of models)
    if (checkpoint !== undefined) await adoptCheckpoint(session, checkpoint, { isTrained: false });
}

/** @throws {ConfigError} where the model cannot be opened or every attempt failed. */
async function evaluateModel(model: NamedModel, evaluation: ModelEvaluation): Promise<ModelAttempts> {
  const store = await openStore(model, evaluation);
  try {
    const { session, settings } = evaluation.data;
    const knownAttempts = store && knownEpisodes(store, { tasks: session.tasks.val, n: settings.rollout.n_val });
    if (!knownAttempts) return await attempt(model, { ...evaluation, data: { ...evaluation.data, store } });
    evaluation.io.err(`${model.name}: all ${knownAttempts.length} attempts are known from an earlier evaluation\n`);
    return { name: model.name, episodes: knownAttempts, known: knownAttempts.length };
  } finally {
    await store?.close();
  }
}

/** Only where an attempt follows from its key: not where another process plays, and not where every call is to be recorded. */
async function openStore(
  { name, checkpoint }: NamedModel,
  { data, cache }: ModelEvaluation,
): Promise<KnownAttempts | undefined> {
  const { recording, imports, session } = data;
  const { config, gateway } = session;
  if (cache === undefined || gateway || recording || setting(config, "rllm.backend") !== "local") return undefined;
  const folder = checkpoint ?? setting(config, "model.name") ?? undefined;
  if (folder !== undefined && !existsSync(folder)) return undefined;
  const version = packageVersion();
  const key = await contentKey({ version, config, folder, imports });
  return KnownAttempts.open(join(cache, key), { model: name, version });
}

async function attempt({ name, checkpoint }: NamedModel, { io, data }: ModelEvaluation): Promise<ModelAttempts> {
  const knownCount = data.store?.size ?? 0;
  return withOpened(evalRecipe, { data, io, checkpoint }, async (opened, opening) => {
    const { val } = opened.session.tasks;
    io.err(`${name}: ${val.length} tasks on ${opened.description}\n`);
    const { drive } = await evalRecipe.prepare(opened, opening);
    const total = val.length * data.settings.rollout.n_val;
    const logger = new AttemptLogger(io, total);
    await drive({ loggers: [logger], signal: io.signal }).finally(() => logger.close());
    if (logger.failed === total) throw new ConfigError(ALL_FAILED, { kind: "code" });
    return { name, episodes: logger.episodes, known: knownCount };
  });
}

const ALL_FAILED = "Cannot score the model: every rollout failed. Correct the error shown above.";
