/** Opens the parts of a run from a command line: modules, configuration, environment, tasks, backend. */

import type { FetchFunction } from "../../chat/endpoint.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { backends } from "../backend/backends.ts";
import type { Composed } from "../config/compose.ts";
import { TASK_FIELDS } from "../config/fields/local_and_tinker.ts";
import type { Problem } from "../config/problem.ts";
import { PROCESSING_KEYS } from "../config/rules/services.ts";
import { setting } from "../config/schema.ts";
import type { Tree } from "../config/yaml/tree.ts";
import type { Rendering } from "../data/supervised.ts";
import type { Task } from "../data/types.ts";
import { loggers } from "../log/loggers/loggers.ts";
import { rejections } from "../loop/stages/hooks.ts";
import "../task/answers/rewards.ts";
import "../task/environments.ts";
import { chooseRollout, type RolloutSettings } from "../task/choose.ts";
import { environments, evaluators, rewards } from "../task/registered.ts";
import type { Environment, Evaluate, Evaluator, Example, Rollout } from "../task/rollout.ts";
import { composeFiles, type RunSessionOptions } from "./compose_files.ts";
import { ExternalGateway } from "./gateway/external_gateway.ts";
import { gatewaySettings } from "./gateway/gateway_settings.ts";
import { RunGateway } from "./gateway/run_gateway.ts";
import type { RunIo } from "./io.ts";
import { streamFetch } from "./net/http.ts";
import { readTasks } from "./task/datasets.ts";
import { Judges } from "./task/judges.ts";
import { readEvaluator, rolloutSettings } from "./task/task_settings.ts";

export interface RunSession {
  readonly config: Tree;
  readonly environment: Environment;
  readonly rollout: Rollout;
  /** Every rollout begins with its task's own prompt. */
  readonly asksPrompt: boolean;
  /** Each rollout has several trajectories with rewards of their own. */
  readonly hasRoles: boolean;
  readonly evaluate?: Evaluate | undefined;
  readonly tasks: { readonly train: readonly Task[]; readonly val: readonly Task[] };
  readonly examples: readonly Example[];
  /** Keys of the user's own, which no table of settings has. */
  readonly added: readonly string[];
  /** Whether a file or the command line names the setting, as opposed to a default. */
  readonly isGiven: (path: string) => boolean;
  /** Gateway for `task.agent`: opened before the first attempt, closed after the last. */
  readonly gateway?: RunGateway | ExternalGateway | undefined;
}

/** Parts of a session that opening a model reads. */
export interface ModelSession extends Pick<RunSession, "config" | "isGiven" | "tasks"> {
  /** Those of `grpu sft` hold what the chat template reads besides the messages. */
  readonly examples: readonly (Example & Rendering)[];
  readonly environment: Pick<Environment, "alphabet">;
}

/** A composed configuration, checked. */
export interface Composition extends Pick<RunSession, "config" | "isGiven" | "added"> {
  readonly imports: readonly string[];
  readonly composed: Composed;
}

/**
 * Composes the configuration of a run, with the names that the user's modules register.
 * @throws {ConfigError} that names the file or key to correct.
 */
export async function composeRun(options: RunSessionOptions, io: RunIo): Promise<Composition> {
  const { estimatorNames } = await import("../../engine/algorithm/advantage/estimators.ts");
  const { lossNames } = await import("../../engine/algorithm/loss/losses.ts");
  const isRead = ({ path }: Problem) => options.isRecorded === true && PROCESSING_KEYS.some((key) => key === path);
  const { composed, isGiven, added } = await composeFiles(options, {
    io,
    isShown: (warning) => !isRead(warning),
    registered: () => ({
      "task.name": environments.names(),
      "task.reward": rewards.names(),
      "task.evaluator": evaluators.names(),
      "rllm.algorithm.adv_estimator": [...estimatorNames()],
      "rllm.algorithm.loss_fn": [...lossNames()],
      "rllm.rejection_sample.mode": rejections.names(),
      "rllm.backend": backends.names(),
      "rllm.trainer.logger": loggers.names(),
    }),
  });
  return { config: composed.config, isGiven, added, imports: options.imports, composed };
}

/**
 * Loads everything that a run reads before it opens a device.
 * @throws {ConfigError} that names the file, key or row to correct.
 */
export async function openSession(options: RunSessionOptions, io: RunIo): Promise<RunSession> {
  return openTask(await composeRun(options, io), options);
}

/** Loads the tasks of a composed configuration. @throws {ConfigError} as {@link openSession} */
export function openTask(
  { imports, config, isGiven, added }: Omit<Composition, "composed">,
  { isRecorded = false }: Pick<RunSessionOptions, "isRecorded"> = {},
): Promise<RunSession> {
  const judges = openJudges(config, imports);
  return describeTask(config, { isGiven, added, isRecorded, judges });
}

/** Process in which rewards and evaluators run; undefined: this one. */
function openJudges(config: Tree, imports: readonly string[]): Judges | undefined {
  const timeoutSeconds = setting(config, "task.judge_timeout");
  const mayHang = imports.length > 0 || UNBOUNDED.has(setting(config, "task.reward") ?? "");
  // A run's stored configuration holds the default too, and judges where the run did.
  const isUsual = timeoutSeconds === TASK_FIELDS["task.judge_timeout"].default;
  const isWanted = timeoutSeconds !== null && (mayHang || !isUsual);
  return isWanted ? new Judges({ imports, timeoutSeconds }) : undefined;
}

/** Built-in rewards whose work a row sets: the patterns of a JSON schema may backtrack. */
const UNBOUNDED: ReadonlySet<string> = new Set(["json_schema"]);

async function describeTask(
  config: Tree,
  {
    judges,
    isRecorded,
    ...args
  }: Pick<RunSession, "isGiven" | "added"> & { readonly judges: Judges | undefined; readonly isRecorded: boolean },
): Promise<RunSession> {
  const environment = environments.find(setting(config, "task.name") ?? "single_turn");
  const { gateway, remote } = openRemote(config);
  const chosen = chooseRollout(rolloutSettings(config, { environment, judges, remote }));
  const { isGiven } = args;
  const inUse = [...chosen.judges, ...evaluatorsOf(config)];
  const val_only = setting(config, "rllm.trainer.val_only");
  const [train, val] = [
    await readTasks(config, {
      split: "train",
      shipped: environment.train_files,
      isGiven,
      judges: val_only ? [] : inUse,
    }),
    await readTasks(config, { split: "val", shipped: environment.val_files, isGiven, judges: inUse }),
  ];
  if (train.length === 0 && !isRecorded && !val_only) {
    throw new ConfigError(
      "Cannot train: there are no tasks. Set data.train_files to a JSONL or Parquet file, a folder of them, or a data set of an imported module.",
      {
        path: "data.train_files",
      },
    );
  }
  return {
    config,
    ...args,
    gateway,
    environment,
    rollout: chosen.rollout,
    asksPrompt: chosen.asksPrompt,
    hasRoles: chosen.hasRoles === true,
    evaluate: readEvaluator(config, judges),
    tasks: { train, val },
    examples: train.flatMap(chosen.examples),
  };
}

function evaluatorsOf(config: Tree): readonly Evaluator[] {
  const name = setting(config, "task.evaluator");
  return name === null ? [] : [evaluators.find(name)];
}

/** The agents of `task.agent` and the gateway that they call, which is not open yet. */
function openRemote(config: Tree): Pick<RunSession, "gateway"> & Pick<RolloutSettings, "remote"> {
  const settings = gatewaySettings(config);
  if (settings.agents.length === 0) return {};
  const gateway = settings.mode === "external" ? new ExternalGateway(settings) : new RunGateway(settings);
  const { agents: urls, keys } = settings;
  const fetch: FetchFunction = (url, init = {}) => streamFetch(String(url), init);
  return { gateway, remote: { urls, keys, sessions: gateway, fetch } };
}

/** The folder of a run: checkpoints, metrics, report. */
export function runFolder(config: Tree): string {
  return setting(config, "training.default_local_dir");
}
