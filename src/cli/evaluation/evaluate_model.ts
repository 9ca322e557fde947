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
import type { Session } from "../run/session.ts";
import { contentKey } from "./content_key.ts";
import { KnownAttempts } from "./known_attempts.ts";
import type { NamedModel } from "./named_models.ts";

export interface Evaluation {
  readonly io: Io;
  readonly session: Session;
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
export async function evaluateModel(model: NamedModel, it: Evaluation): Promise<ModelAttempts> {
  const store = await openStore(model, it);
  try {
    const { tasks } = it.session;
    const all = store && knownEpisodes(store, { tasks: tasks.val, n: it.settings.rollout.n_val });
    if (!all) return await attempt(model, it, store);
    it.io.err(`${model.name}: all ${all.length} attempts are known from an earlier evaluation\n`);
    return { name: model.name, episodes: all, known: all.length };
  } finally {
    await store?.close();
  }
}

/** Only where an attempt follows from its key: not where another process plays, and not where every call is to be recorded. */
async function openStore({ name, checkpoint }: NamedModel, it: Evaluation): Promise<KnownAttempts | undefined> {
  const { cache, recording, imports, session } = it;
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
  { io, session: given, settings, recording }: Evaluation,
  store: KnownAttempts | undefined,
): Promise<ModelAttempts> {
  const opened = await openBackend(given, { io, checkpoint, isTrained: false });
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
    const known = store?.size ?? 0;
    if (known > 0) io.err(`${known} attempts are known from an earlier evaluation\n`);
    const logger = new AttemptLogger(io, total);
    const run = { ...session, rollout, stages, backend, rewardModel, settings, loggers: [logger], signal: io.signal };
    await train(run).finally(() => logger.close());
    if (logger.failed === total) throw new ConfigError(ALL_FAILED, { kind: "code" });
    return { name, episodes: logger.episodes, known };
  } finally {
    rewardModel?.close();
    backend.close();
  }
}

const TICK_MS = 1000;

/** Keeps the episodes of a validation, and shows how far it is. */
class AttemptLogger implements Logger {
  episodes: readonly Episode[] = [];
  private readonly io: Io;
  private readonly line: Progress;
  /** All attempts are under way at once, and none may end for minutes: the line is due without one, too. */
  private readonly timer: NodeJS.Timeout;
  private done = 0;

  constructor(io: Io, total: number) {
    this.io = io;
    this.line = new Progress(io, "eval", { unit: "attempts" });
    this.timer = setInterval(() => this.line.update(this.done, total), TICK_MS);
  }

  close(): void {
    clearInterval(this.timer);
    this.line.finish();
  }

  get failed(): number {
    return this.episodes.filter(({ termination_reason }) => termination_reason === "error").length;
  }

  progress(done: number, total: number): void {
    this.done = done;
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
