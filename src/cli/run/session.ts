/** Turns a command line into the parts of a run: modules, configuration, environment, tasks, backend. */
import { backends } from "../../backend/backends.ts";
import type { FetchFunction } from "../../chat/endpoint.ts";
import { type Composed, composeConfig } from "../../config/compose.ts";
import { TASK_FIELDS } from "../../config/fields/local_and_tinker.ts";
import type { Problem } from "../../config/problem.ts";
import { formatProblem } from "../../config/problem.ts";
import { PROCESSING_KEYS } from "../../config/rules/services.ts";
import { fieldAt, setting } from "../../config/schema.ts";
import { LEVEL, originOf } from "../../config/yaml/layer.ts";
import { leaves, type Tree } from "../../config/yaml/tree.ts";
import type { Rendering } from "../../data/supervised.ts";
import type { Task } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import { loggers } from "../../log/loggers/loggers.ts";
import { rejections } from "../../loop/stages/hooks.ts";
import "../../task/answers/rewards.ts";
import "../../task/environments.ts";
import { chooseRollout, type RolloutSettings } from "../../task/choose.ts";
import { environments, evaluators, rewards } from "../../task/registered.ts";
import type { Environment, Evaluate, Evaluator, Example, Rollout } from "../../task/rollout.ts";
import type { Io } from "../command.ts";
import { locate, nearestFile, packagedText, readTextIfPresent } from "../files.ts";
import { splitArguments } from "../options.ts";
import { streamFetch } from "../process/http.ts";
import { readTasks } from "./datasets.ts";
import { ExternalGateway } from "./external_gateway.ts";
import { gatewaySettings } from "./gateway_settings.ts";
import { Judges } from "./judges.ts";
import { importModules } from "./modules.ts";
import { RunGateway } from "./run_gateway.ts";
import { readEvaluator, rolloutSettings } from "./task_settings.ts";

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

export interface RunSessionOptions {
  /** Files and overrides, as typed. */
  readonly args: readonly string[];
  /** Modules of the user's. */
  readonly imports: readonly string[];
  /** More overrides, from flags. */
  readonly overrides?: readonly string[];
  /** Settings that the backend cannot honour are warned of, not refused. */
  readonly allowUnsupported?: boolean;
  /** Training data may be missing, because the run trains on traces. Default false. */
  readonly isRecorded?: boolean;
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
export async function composeRun(
  { args, imports, overrides = [], allowUnsupported = false, isRecorded = false }: RunSessionOptions,
  io: Io,
): Promise<Composition> {
  await importModules(imports);
  const split = splitArguments(args);
  for (const file of split.files) requireFile(file);
  const { estimatorNames } = await import("../../algorithm/advantage/estimators.ts");
  await import("../../algorithm/advantage/host.ts");
  const { lossNames } = await import("../../algorithm/loss/losses.ts");
  const composed = composeConfig({
    files: split.files,
    overrides: [...split.overrides, ...overrides],
    allowUnsupported,
    readFile: (path) => readTextIfPresent(locate(path)),
    readConfig: packagedText,
    env: io.env,
    registered: {
      "task.name": environments.names(),
      "task.reward": rewards.names(),
      "task.evaluator": evaluators.names(),
      "rllm.algorithm.adv_estimator": [...estimatorNames()],
      "rllm.algorithm.loss_fn": [...lossNames()],
      "rllm.rejection_sample.mode": rejections.names(),
      "rllm.backend": backends.names(),
      "rllm.trainer.logger": loggers.names(),
    },
  });
  const { config, origins, warnings, schema } = composed;
  const isRead = ({ path }: Problem) => isRecorded && PROCESSING_KEYS.some((key) => key === path);
  warn(
    warnings.filter((each) => !isRead(each)),
    io,
  );
  const isGiven = (path: string) => (originOf(origins, path)?.level ?? LEVEL.native) >= LEVEL.file;
  const added = [...leaves(config)].map(([path]) => path).filter((path) => !fieldAt(schema, path));
  return { config, isGiven, added, imports, composed };
}

/**
 * Loads everything that a run reads before it opens a device.
 * @throws {ConfigError} that names the file, key or row to correct.
 */
export async function openSession(options: RunSessionOptions, io: Io): Promise<RunSession> {
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

/** @throws {ConfigError} with the nearest name where there is no such file */
export function requireFile(path: string): void {
  if (readTextIfPresent(locate(path)) !== undefined) return;
  throw new ConfigError(
    `Cannot read the configuration: there is no such file (${path}).${nearestFile(path)} Overrides are written key=value.`,
    { kind: "data" },
  );
}

/** Prints what a configuration warns of. */
export function warn(warnings: readonly Problem[], io: Io): void {
  for (const warning of warnings) io.err(`${formatProblem(warning)}\n`);
}

/** Opens the judges that run rewards and evaluators; undefined: in this process. */
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
