/** The trainers that run on a cluster, and what differs between them: the job, the version, the log. */
import type { NodeAnswer } from "../../../cluster/ray/probe.ts";
import type { JobPlan, TrainerLog } from "../../../cluster/ray/trainer.ts";
import { TRINITY_VERSION, trinityJob } from "../../../cluster/trinity/job.ts";
import { TrinityLog } from "../../../cluster/trinity/log.ts";
import { mergeCommand } from "../../../cluster/verl/checkpoints.ts";
import { verlJob } from "../../../cluster/verl/job.ts";
import { explainError, VerlLog } from "../../../cluster/verl/log.ts";
import { verlVersion } from "../../../cluster/verl/versions.ts";
import type { ClusterBackend } from "../../config/fields/backend_fields.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import { packagedText } from "../files.ts";
import type { Composition, RunSession } from "../session.ts";
import { trinityOnCluster } from "./trinity_on_cluster.ts";
import { checkCpus, versionOnCluster } from "./verl_on_cluster.ts";

export interface TrainerRequest {
  readonly composition: Composition;
  readonly session: RunSession;
  /** The job's submission id. */
  readonly id: string;
  readonly service: { readonly url: string; readonly token: string };
  /** Default: the version that the configuration stands on. */
  readonly version?: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
}

export interface ClusterTrainer {
  readonly system: ClusterBackend;
  /** Its name for people. */
  readonly title: string;
  /** The Python package whose version the nodes tell. */
  readonly package: string;
  /** The job of a run, with what is wrong with it. */
  plan(request: TrainerRequest): JobPlan;
  /**
   * The version to make the run for, by what the nodes have.
   * @throws {ConfigError} for a cluster that cannot run it
   */
  versionOn(answers: readonly NodeAnswer[], context: { readonly plan: JobPlan } & OnCluster): string;
  openLog(): TrainerLog;
  /** An error of the trainer with what to do about it; as it is where that is not known. */
  explain(message: string): string;
  /** The shell command that makes a model folder of a checkpoint; absent: the trainer writes one itself. */
  merge?(folder: string, config: Tree): string;
}

export interface OnCluster {
  readonly composition: Composition;
  readonly warn: (message: string) => void;
}

const verl: ClusterTrainer = {
  system: "verl",
  title: "verl",
  package: "verl",
  plan: ({ composition: { composed }, version, ...request }) =>
    verlJob({ composed, version: verlVersion(version ?? composed.verlTree), ...jobParts(request) }),
  versionOn(answers, { plan, composition, warn }) {
    const { name } = versionOnCluster(answers, { tree: composition.composed.verlTree, warn });
    checkCpus(answers, plan);
    return name;
  },
  openLog: () => new VerlLog(),
  explain: explainError,
  merge: (folder, config) =>
    mergeCommand({ folder, target: "DIR", strategy: String(getAt(config, "actor_rollout_ref.actor.strategy")) }),
};

const trinity: ClusterTrainer = {
  system: "trinity",
  title: "Trinity-RFT",
  package: "trinity-rft",
  plan: ({ composition: { composed }, ...request }) => trinityJob({ composed, ...jobParts(request) }),
  versionOn: (answers, { plan, warn }) => trinityOnCluster(answers, { gpus: plan.gpus, made: TRINITY_VERSION, warn }),
  openLog: () => new TrinityLog(),
  explain: (message) => message,
};

export const CLUSTER_TRAINERS: Readonly<Record<ClusterBackend, ClusterTrainer>> = { verl, trinity };

function jobParts({ session, id, service, metadata }: Omit<TrainerRequest, "composition" | "version">) {
  return {
    ...{ submission_id: id, train: session.tasks.train, val: session.tasks.val, hasAgent: !session.asksPrompt },
    ...{ service, metadata, readPackaged: packagedText },
  };
}
