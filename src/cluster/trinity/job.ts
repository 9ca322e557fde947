/** One run of Trinity-RFT as a job for a Ray cluster: its configuration, its tasks, the driver and the workflow. */
import { toYaml } from "../../train/config/show.ts";
import { getAt, type Tree } from "../../train/config/yaml/tree.ts";
import type { Task } from "../../train/data/types.ts";
import type { GpuPlan } from "../convert/trinity/gpus.ts";
import type { JobSpec } from "../ray/contract.ts";
import { shownTree } from "../ray/dry_run.ts";
import type { JobPlan } from "../ray/trainer.ts";
import { verlRows } from "../verl/rows.ts";
import { type ConfigRequest, trinityConfig } from "./config.ts";
import { stepsText } from "./length.ts";

/** The version that runs are made for. */
export const TRINITY_VERSION = "0.6.0";

export interface TrinityJobRequest extends Pick<ConfigRequest, "composed" | "hasAgent"> {
  readonly submission_id: string;
  readonly train: readonly Task[];
  readonly val: readonly Task[];
  /** Names of the run's own hooks that would act in the training step. */
  readonly hooks?: readonly string[];
  /** Address of the service for the cluster's workers, and the key of this run. */
  readonly service: { readonly url: string; readonly token: string };
  /** Text of a packaged file: verl's defaults and the Python files. */
  readonly readPackaged: (name: string) => string | undefined;
  readonly metadata?: Readonly<Record<string, string>>;
}

export interface TrinityPlan extends JobPlan {
  /** Trinity's configuration. */
  readonly tree: Tree;
}

const CONFIG_FILE = "trinity.yaml";
const COMMAND = `python3 trinity_driver.py ${CONFIG_FILE}`;
const FOLDERS = { train: "tasks/train", val: "tasks/val" } as const;
/** Trinity's reader takes the split from the file's name. */
const TASKS_FILE = "train.jsonl";
const PYTHON_FILES = ["grpu_service.py", "trinity_driver.py", "trinity_reward.py"];

/**
 * The job, and the problems that forbid it or that it has.
 *
 * @throws {ConfigError} for tasks that rows cannot hold.
 */
export function trinityJob(request: TrinityJobRequest): TrinityPlan {
  const { submission_id, service, composed, hasAgent, train, val, hooks = [], readPackaged, metadata = {} } = request;
  const folders = { ...(train.length > 0 && { train: FOLDERS.train }), ...(val.length > 0 && { val: FOLDERS.val }) };
  const config = trinityConfig({
    ...{ composed, hasAgent, hooks, folders, tasks: train.length, readConfig: readPackaged },
  });
  const { tree, gpus, problems } = config;
  const job: JobSpec = {
    submission_id,
    entrypoint: COMMAND,
    files: filesOf(request, tree),
    // Ray leaves out a line of a worker that resembles another's; failures are counted from them.
    env: { GRPU_URL: service.url, GRPU_TOKEN: service.token, RAY_DEDUP_LOGS: "0" },
    metadata: { grpu_backend: "trinity", trinity: TRINITY_VERSION, ...metadata },
  };
  const command = [
    COMMAND,
    `${CONFIG_FILE}:`,
    ...toYaml(shownTree(tree))
      .trimEnd()
      .split("\n")
      .map((line) => `  ${line}`),
  ];
  const facts = [gpusText(tree, gpus), stepsText(tree)];
  const needed = gpus && { nodes: gpus.nodes, perNode: gpus.perNode };
  return { job, tree, problems, command, facts, gpus: needed };
}

function filesOf({ train, val, hasAgent, readPackaged }: TrinityJobRequest, tree: Tree): Map<string, Uint8Array> {
  const agentName = hasAgent ? "grpu" : undefined;
  const rows = (tasks: readonly Task[], split: "train" | "val") =>
    verlRows(tasks, { split, agentName, system: "Trinity" });
  const texts: [string, string][] = [[CONFIG_FILE, toYaml(tree)]];
  if (train.length > 0) texts.push([`${FOLDERS.train}/${TASKS_FILE}`, rows(train, "train")]);
  if (val.length > 0) texts.push([`${FOLDERS.val}/${TASKS_FILE}`, rows(val, "val")]);
  for (const name of hasAgent ? [...PYTHON_FILES, "trinity_agent.py"] : PYTHON_FILES) {
    const text = readPackaged(`ray/${name}`);
    if (text === undefined) throw new Error(`the package lacks config/ray/${name}`);
    texts.push([name, text]);
  }
  const encoder = new TextEncoder();
  return new Map(texts.map(([name, text]) => [name, encoder.encode(text)]));
}

function gpusText(tree: Tree, gpus: GpuPlan | undefined): string {
  if (gpus === undefined) return "GPUs: none of the cluster's (model.tinker), or left to Ray";
  const mode = getAt(tree, "mode");
  const engine = (name: string) => getAt(tree, `explorer.rollout_model.${name}`) ?? 1;
  const engines = `${engine("engine_num")} engines of ${engine("tensor_parallel_size")}`;
  const parts = [
    mode === "train" ? "" : `rollouts ${gpus.explorer} (${engines})`,
    gpus.auxiliary > 0 ? `auxiliary models ${gpus.auxiliary}` : "",
    mode === "both" || mode === "train" ? `trainer ${gpus.trainer}` : "",
  ];
  return `GPUs: ${gpus.nodes} x ${gpus.perNode}: ${parts.filter(Boolean).join(", ")}`;
}
