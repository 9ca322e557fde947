/** The job of a run, with what the cluster's settings add to it. */
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { JobSpec } from "../../backend/ray/contract.ts";
import { dryRunFiles } from "../../backend/verl/dry_run.ts";
import { type JobPlan, verlJob } from "../../backend/verl/job.ts";
import { type VerlVersion, verlVersion } from "../../backend/verl/versions.ts";
import { formatProblem, throwProblems } from "../../config/problem.ts";
import { setting } from "../../config/schema.ts";
import { fileError } from "../../errors.ts";
import type { Io } from "../command.ts";
import { packagedText } from "../files.ts";
import type { Composition, Session } from "../run/session.ts";
import type { ClusterSettings } from "./settings.ts";

export interface PlanRequest {
  readonly composition: Composition;
  readonly session: Session;
  readonly settings: ClusterSettings;
  /** The job's submission id. */
  readonly id: string;
  readonly service: { readonly url: string; readonly token: string };
  /** Default: the version of the tree that the configuration stands on. */
  readonly version?: VerlVersion | undefined;
  readonly io: Io;
}

export interface ClusterJob extends JobPlan {
  readonly job: JobPlan["job"] & JobSpec;
}

/** @throws {ConfigError} with every problem that makes the run impossible; warnings are printed */
export function planJob({ composition, session, settings, id, service, version, io }: PlanRequest): ClusterJob {
  const { config, composed } = composition;
  const name = setting(config, "rllm.trainer.experiment_name");
  const plan = verlJob({
    composed,
    version: version ?? verlVersion(composed.verlTree),
    submission_id: id,
    train: session.tasks.train,
    val: session.tasks.val,
    hasAgent: !session.asksPrompt,
    service,
    readPackaged: packagedText,
    metadata: { run: name },
  });
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

/** Names the run for people, and is new each time. */
export function submissionId(name: string): string {
  const word = name.replace(/[^\w.-]+/g, "_").slice(0, 40);
  return `grpu-${word}-${crypto.randomUUID().slice(0, 8)}`;
}

/** Writes what a person would hand to `ray job submit`. */
export function writeJobFolder({ job }: ClusterJob, dir: string): void {
  for (const [name, bytes] of dryRunFiles(job)) {
    const file = join(dir, name);
    try {
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, bytes, name.endsWith(".sh") ? { mode: 0o755 } : {});
    } catch (cause) {
      throw fileError(cause, { act: "write the job's folder", file }) ?? cause;
    }
  }
}
