/** Follows a job to its end, or to where this process stops following it. */
import { join } from "node:path";
import type { JobDetails } from "../../backend/ray/contract.ts";
import { failureOf } from "../../backend/ray/failure.ts";
import type { RayJobs } from "../../backend/ray/jobs.ts";
import { explainError } from "../../backend/verl/log.ts";
import type { Logger } from "../../log/logger.ts";
import type { Service } from "../../service/service.ts";
import type { Io } from "../command.ts";
import type { ClusterFolder } from "./cluster_folder.ts";
import { type Counts, FailureWatch } from "./failure_watch.ts";
import { JobFollower } from "./job_follower.ts";
import { JOB_LOG_FILE, type JobRecord } from "./job_record.ts";
import { leaveOrStop } from "./leave_or_stop.ts";
import type { SampledEpisodes } from "./sampled_episodes.ts";
import type { ClusterSettings } from "./settings.ts";

export interface WatchOptions {
  readonly jobs: RayJobs;
  readonly service: Service;
  readonly record: JobRecord;
  readonly loggers: readonly Logger[];
  readonly samples: SampledEpisodes;
  readonly folder: ClusterFolder;
  readonly settings: ClusterSettings;
  readonly io: Io;
}

export interface JobEnd {
  /** `left`: the job goes on. */
  readonly kind: "succeeded" | "failed" | "stopped" | "left";
  readonly step: number;
  readonly totalSteps: number;
  /** The newest complete checkpoint, on the cluster. */
  readonly lastSaved: { readonly step: number; readonly folder: string } | undefined;
  /** Of a job that failed. */
  readonly cause?: string | undefined;
}

const BETWEEN_LOOKS_MS = 2000;

/** Why this process stopped following. */
type Reason = "signal" | "failures" | "folder";

export async function watchJob(options: WatchOptions): Promise<JobEnd> {
  const { jobs, service, record, folder, settings, io } = options;
  const following = new AbortController();
  const tell = (text: string) => io.err(`${text}\n`);
  const onTotal = (total_steps: number) => void folder.describe({ total_steps }).catch(() => {});
  const follower = new JobFollower({
    loggers: options.loggers,
    file: join(folder.dir, JOB_LOG_FILE),
    tell,
    takeSamples: () => options.samples.take(),
    onTotal,
  });
  let reason: Reason | undefined;
  const quit = (why: Reason) => {
    reason ??= why;
    following.abort(new Error("No longer followed"));
  };
  const watch = new FailureWatch(settings.maxFailedShare);
  let tooMany: Counts | undefined;
  const timer = setInterval(() => {
    tooMany ??= watch.see(countsOf(service));
    if (tooMany) quit("failures");
  }, BETWEEN_LOOKS_MS);
  const onSignal = () => quit("signal");
  const onLost = () => quit("folder");
  io.signal.addEventListener("abort", onSignal, { once: true });
  folder.signal.addEventListener("abort", onLost, { once: true });
  if (io.signal.aborted) onSignal();
  let details: JobDetails | undefined;
  try {
    details = await jobs.follow(record.submission_id, (line) => follower.line(line), following.signal);
  } catch (error) {
    if (reason === undefined) {
      await follower.finish().catch(() => {});
      throw error;
    }
  } finally {
    clearInterval(timer);
    io.signal.removeEventListener("abort", onSignal);
    folder.signal.removeEventListener("abort", onLost);
  }
  const { step, totalSteps, lastSaved } = follower;
  const so = { step, totalSteps, lastSaved };
  if (reason === "folder") {
    await jobs.stop(record.submission_id);
    throw folder.signal.reason;
  }
  await follower.finish();
  if (details) return ended(details, follower, so);
  if (reason === "failures") {
    await jobs.stop(record.submission_id);
    return { kind: "failed", ...so, cause: failureText(service, tooMany!) };
  }
  if ((await leaveOrStop(io)) === "leave") return { kind: "left", ...so };
  tell(`stopping the job ${record.submission_id}`);
  await jobs.stop(record.submission_id);
  return { kind: "stopped", ...so };
}

function ended(details: JobDetails, follower: JobFollower, so: Omit<JobEnd, "kind">): JobEnd {
  if (details.status === "SUCCEEDED") return { kind: "succeeded", ...so };
  if (details.status === "STOPPED") return { kind: "stopped", ...so };
  const cause = follower.cause();
  // What is known of verl's own errors comes first.
  const known = cause && explainError(cause.message);
  return { kind: "failed", ...so, cause: known === cause?.message ? failureOf(details, cause) : known };
}

function countsOf(service: Service): Counts {
  const { judgements, rollouts } = service.stats();
  const { done, failed, empty } = rollouts;
  return {
    ended: judgements.total - judgements.waiting + done + failed + empty,
    failed: judgements.failed + failed,
  };
}

function failureText(service: Service, { ended, failed }: Counts): string {
  const first = service.stats().failures[0]?.first;
  const example = first ? ` The most frequent: ${first.where}: ${first.message.split("\n")[0]}` : "";
  return `${failed} of the latest ${ended} rewards and rollouts failed, more than ray.max_failed_share allows.${example}`;
}
