/** One run of verl's trainer as a job for a Ray cluster: the command, its files and its environment. */
import type { Composed } from "../../train/config/compose.ts";
import type { Problem } from "../../train/config/problem.ts";
import { maskOverride } from "../../train/config/secret.ts";
import { getAt } from "../../train/config/yaml/tree.ts";
import type { Task } from "../../train/data/types.ts";
import type { JobSpec } from "../ray/contract.ts";
import { quoteWord } from "../ray/shell_word.ts";
import type { JobPlan } from "../ray/trainer.ts";
import { cpusHeld } from "./cpus.ts";
import { type VerlOverrides, verlOverrides } from "./overrides.ts";
import type { RunFiles } from "./own_settings.ts";
import { verlRows } from "./rows.ts";
import type { VerlVersion } from "./versions.ts";

export interface VerlJobRequest {
  /** Composed with `rllm/backend=verl`. */
  readonly composed: Composed;
  readonly version: VerlVersion;
  readonly submission_id: string;
  readonly train: readonly Task[];
  readonly val: readonly Task[];
  /** Rollouts are made by the run's agent or workflow. Otherwise verl samples one reply to each prompt. */
  readonly hasAgent: boolean;
  /** Names of the run's own stages, losses and other hooks that would act in the training step. */
  readonly hooks?: readonly string[];
  /** Address of the service for the cluster's workers, and the key of this run. */
  readonly service: { readonly url: string; readonly token: string };
  /** Text of a packaged file: verl's defaults and the Python files. */
  readonly readPackaged: (name: string) => string | undefined;
  /** Install verl for the job. Default: the cluster's Python has it. */
  readonly installs?: boolean;
  readonly metadata?: Readonly<Record<string, string>>;
}

export interface VerlPlan extends JobPlan, VerlOverrides {}

/** verl's trainer, before its overrides. */
export const MAIN = "python3 -m verl.trainer.main_ppo";

/** The Python module of the run's agents, and the name under which its rows ask for them. */
const AGENT_MODULE = "verl_agent";
export const AGENT_NAME = "grpu";
const PYTHON_FILES = ["grpu_service.py", "verl_reward.py", "verl_metrics.py"];
/** After a trainer that ended well: the last steps of its metrics file. */
const LAST_METRICS = "&& python3 verl_metrics.py";

/**
 * The job, and the problems that forbid it or that it has.
 *
 * @throws {ConfigError} for tasks that verl's rows cannot hold.
 */
export function verlJob(request: VerlJobRequest): VerlPlan {
  const { submission_id, service, version, metadata = {} } = request;
  const names: RunFiles = {
    train: "train.jsonl",
    val: request.val.length > 0 ? "val.jsonl" : undefined,
    reward: "verl_reward.py",
    agents: request.hasAgent ? "agent.yaml" : undefined,
  };
  const { overrides, problems } = verlOverrides({ ...request, readConfig: request.readPackaged, files: names });
  const job: JobSpec = {
    submission_id,
    entrypoint: [MAIN, ...overrides.map(quoteWord), LAST_METRICS].join(" "),
    files: filesOf(request, names),
    env: { GRPU_URL: service.url, GRPU_TOKEN: service.token, VERL_FILE_LOGGER_ROOT: metricsFolder(request) },
    ...(request.installs === true && { pip: version.pip }),
    metadata: { grpu_backend: "verl", verl: version.name, ...metadata },
  };
  const shown = (override: string) => maskOverride(override, /^\+*([^=]*)/.exec(override)![1]!);
  const command = [MAIN, ...overrides.map((override) => quoteWord(shown(override))), LAST_METRICS];
  const cpus = cpusHeld(request.composed.config, version);
  return { job, command, facts: [], overrides, cpus, problems: [...problems, ...batchProblem(request)] };
}

/**
 * Returns the folder of metrics: beside the checkpoints, which all nodes reach; without checkpoints the working
 * directory, which those of one node share.
 */
function metricsFolder({ composed: { config }, submission_id }: VerlJobRequest): string {
  const dir = String(getAt(config, "trainer.default_local_dir"));
  const isShared = Number(getAt(config, "trainer.save_freq")) > 0 && dir.startsWith("/");
  return isShared ? `${dir.replace(/\/+$/, "")}/metrics/${submission_id}` : "metrics";
}

function filesOf(request: VerlJobRequest, names: RunFiles): Map<string, Uint8Array> {
  const agentName = request.hasAgent ? AGENT_NAME : undefined;
  const texts: [string, string][] = [[names.train, verlRows(request.train, { split: "train", agentName })]];
  if (names.val !== undefined) texts.push([names.val, verlRows(request.val, { split: "val", agentName })]);
  const python = request.hasAgent ? [...PYTHON_FILES, `${AGENT_MODULE}.py`] : PYTHON_FILES;
  for (const name of python) texts.push([name, packaged(request, `ray/${name}`)]);
  if (names.agents) texts.push([names.agents, `- name: ${AGENT_NAME}\n  _target_: ${AGENT_MODULE}.GrpuAgentLoop\n`]);
  const encoder = new TextEncoder();
  return new Map(texts.map(([name, text]) => [name, encoder.encode(text)]));
}

function packaged({ readPackaged }: VerlJobRequest, name: string): string {
  const text = readPackaged(name);
  if (text === undefined) throw new Error(`the package lacks config/${name}`);
  return text;
}

/** verl drops the last, incomplete batch of an epoch, and divides by the number of batches. */
function batchProblem({ composed, train }: VerlJobRequest): Problem[] {
  const path = "data.train_batch_size";
  const size = getAt(composed.config, path);
  if (typeof size !== "number" || train.length >= size) return [];
  const message = `Cannot train on ${train.length} tasks with ${path}=${size}: verl leaves out batches that are not full. Lower it (rllm.data.train_batch_size), or add tasks.`;
  return [{ severity: "error", message, path }];
}
