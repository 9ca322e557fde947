/** Attempts the held-out tasks with one model, apart from the attempts that an earlier evaluation has made. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setting } from "../../config/schema.ts";
import type { Episode } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import { knownEpisodes, remembering } from "../../evaluation/remembered.ts";
import type { Logger } from "../../log/logger.ts";
import { Progress } from "../../log/progress.ts";
import type { LoopSettings } from "../../loop/settings.ts";
import { STAGES } from "../../loop/stages.ts";
import { train } from "../../loop/train.ts";
import type { Io } from "../command.ts";
import { packageVersion } from "../files.ts";
import { openBackend } from "../run/backend.ts";
import { checkPrompts } from "../run/prompts.ts";
import { offerSampling } from "../run/recommended_sampling.ts";
import type { Recording } from "../run/recorded_rollout.ts";
import type { RunSession } from "../run/session.ts";
import { contentKey } from "./content_key.ts";
import { KnownAttempts } from "./known_attempts.ts";
import type { NamedModel } from "./named_models.ts";

export interface ModelEvaluation {
  readonly io: Io;
  readonly session: RunSession;
  readonly settings: LoopSettings;
  readonly imports: readonly string[];
  readonly recording: Recording | undefined;
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

/** @throws {ConfigError} where the model cannot be opened or every attempt failed. */
export async function evaluateModel(model: NamedModel, evaluation: ModelEvaluation): Promise<ModelAttempts> {
  const store = await openStore(model, evaluation);
  try {
    const { tasks } = evaluation.session;
    const earlier = store && knownEpisodes(store, { tasks: tasks.val, n: evaluation.settings.rollout.n_val });
    if (!earlier) return await attempt(model, evaluation, store);
    evaluation.io.err(`${model.name}: all ${earlier.length} attempts are known from an earlier evaluation\n`);
    return { name: model.name, episodes: earlier, known: earlier.length };
  } finally {
    await store?.close();
  }
}

/** Only where an attempt follows from its key: not where another process plays, and not where every call is to be recorded. */
async function openStore(
  { name, checkpoint }: NamedModel,
  evaluation: ModelEvaluation,
): Promise<KnownAttempts | undefined> {
  const { cache, recording, imports, session } = evaluation;
  const { config, gateway } = session;
  if (cache === undefined || gateway || recording || setting(config, "rllm.backend") !== "local") return undefined;
  const folder = checkpoint ?? setting(config, "model.name") ?? undefined;
  if (folder !== undefined && !existsSync(folder)) return undefined;
  const version = packageVersion();
  const key = await contentKey({ version, config, folder, imports });
  return KnownAttempts.open(join(cache, key), { model: name, version });
}

async function attempt(
  { name, checkpoint }: NamedModel,
  { io, session: runSession, settings, recording }: ModelEvaluation,
  store: KnownAttempts | undefined,
): Promise<ModelAttempts> {
  const opened = await openBackend(runSession, { io, checkpoint, isTrained: false });
  const { backend, description, session, rewardModel } = opened;
  try {
    const total = session.tasks.val.length * settings.rollout.n_val;
    io.err(`${name}: ${session.tasks.val.length} tasks on ${description}\n`);
    if (checkpoint !== undefined) await backend.load(checkpoint);
    checkPrompts(session, { backend, io });
    const folder = checkpoint ?? setting(session.config, "model.name");
    if (folder !== null && existsSync(folder)) await offerSampling(session, { folder, io });
    const rollout = recording?.wrap(session.rollout) ?? session.rollout;
    const stages = store ? { ...STAGES, generate: remembering(store) } : STAGES;
    const remembered = store?.size ?? 0;
    if (remembered > 0) io.err(`${remembered} attempts are known from an earlier evaluation\n`);
    const logger = new AttemptLogger(io);
    await train({ ...session, rollout, stages, backend, rewardModel, settings, loggers: [logger], signal: io.signal });
    if (logger.failed === total) throw new ConfigError(ALL_FAILED, { kind: "code" });
    return { name, episodes: logger.episodes, known: remembered };
  } finally {
    rewardModel?.close();
    backend.close();
  }
}

/** Keeps the episodes of a validation, and shows how far it is. */
class AttemptLogger implements Logger {
  episodes: readonly Episode[] = [];
  private readonly io: Io;
  private readonly line: Progress;

  constructor(io: Io) {
    this.io = io;
    this.line = new Progress(io, "eval", { unit: "attempts" });
  }

  get failed(): number {
    return this.episodes.filter(({ termination_reason }) => termination_reason === "error").length;
  }

  progress(done: number, total: number): void {
    this.line.update(done, total);
  }

  log({ episodes = [] }: Parameters<Logger["log"]>[0]): void {
    this.line.finish();
    this.episodes = episodes;
  }

  partial(record: Parameters<Logger["log"]>[0]): void {
    this.log(record);
  }

  warn(message: string): void {
    this.line.finish();
    this.io.err(`warning: ${message}\n`);
  }
}

const ALL_FAILED = "Cannot score the model: every rollout failed. Correct the error shown above.";
