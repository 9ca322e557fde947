/** The job of a run, with what the cluster's settings add to it. */
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { dryRunFiles } from "../../../cluster/ray/dry_run.ts";
import type { JobPlan } from "../../../cluster/ray/trainer.ts";
import { ConfigError, fileError } from "../../../leaves/errors.ts";
import { formatProblem, throwProblems } from "../../config/problem.ts";
import { setting } from "../../config/schema.ts";
import type { RunIo } from "../io.ts";
import type { RunSession } from "../session.ts";
import type { ClusterSettings } from "./settings.ts";
import type { ClusterTrainer, TrainerRequest } from "./trainers.ts";

export interface JobPlanRequest extends Omit<TrainerRequest, "metadata"> {
  readonly trainer: ClusterTrainer;
  readonly settings: ClusterSettings;
  readonly io: RunIo;
}

/** @throws {ConfigError} with every problem that makes the run impossible; warnings are printed */
export function planJob({ trainer, settings, io, ...request }: JobPlanRequest): JobPlan {
  const run = setting(request.composition.config, "rllm.trainer.experiment_name");
  const plan = trainer.plan({ ...request, metadata: { run } });
  checkRoles(request.session, trainer);
  for (const problem of plan.problems) if (problem.severity === "warning") io.err(`${formatProblem(problem)}\n`);
  throwProblems(plan.problems.filter(({ severity }) => severity === "error"));
  const { pip, pyExecutable, resources, env } = settings;
  const job = {
    ...plan.job,
    env: { ...env, ...plan.job.env },
    ...(pip.length > 0 && { pip }),
    ...(pyExecutable !== undefined && { py_executable: pyExecutable }),
    ...(Object.keys(resources).length > 0 && { resources }),
  };
  return { ...plan, job };
}

/** Checks the roles. Those of a user's agent are seen when its first rollouts end; a workflow of ours is known before. */
function checkRoles({ hasRoles, config }: Pick<RunSession, "hasRoles" | "config">, { title }: ClusterTrainer): void {
  if (!hasRoles) return;
  const path = "rllm.workflow.name";
  throw new ConfigError(
    `Cannot train the workflow ${setting(config, path)} with ${title}: each of its rollouts has several trajectories with rewards of their own, and ${title} takes one reward a rollout. Choose rllm/backend=local or tinker.`,
    { path },
  );
}

/** Names the run for people, and is new each time. */
export function submissionId(name: string): string {
  const word = name.replace(/[^\w.-]+/g, "_").slice(0, 40);
  return `grpu-${word}-${crypto.randomUUID().slice(0, 8)}`;
}

/** Writes what a person would hand to `ray job submit`, for its owner alone: the configuration may hold keys. */
export function writeJobFolder({ job }: JobPlan, dir: string): void {
  for (const [name, bytes] of dryRunFiles(job)) {
    const file = join(dir, name);
    try {
      mkdirSync(dirname(file), { recursive: true });
      const mode = name.endsWith(".sh") ? 0o700 : 0o600;
      writeFileSync(file, bytes, { mode });
      // Of a file that was there before.
      chmodSync(file, mode);
    } catch (cause) {
      throw fileError(cause, { act: "write the job's folder", file }) ?? cause;
    }
  }
}
