/** Follows a job to its end, or to where this process stops following it. */
import { join } from "node:path";
import type { JobDetails, LogLine } from "../../../cluster/ray/contract.ts";
import { jobFailureText } from "../../../cluster/ray/failure.ts";
import type { RayJobs } from "../../../cluster/ray/jobs.ts";
import type { Service } from "../../../cluster/rewards/service.ts";
import type { Logger } from "../../log/logger.ts";
import type { RunIo } from "../io.ts";
import type { ClusterFolder } from "./cluster_folder.ts";
import { type Counts, FailureWatch } from "./failure_watch.ts";
import { JobFollower } from "./job_follower.ts";
import { JOB_LOG_FILE, type JobRecord } from "./job_record.ts";
import type { SampledEpisodes } from "./sampled_episodes.ts";
import type { ClusterSettings } from "./settings.ts";
import type { ClusterTrainer } from "./trainers.ts";

export interface JobWatchOptions {
  readonly trainer: ClusterTrainer;
  readonly jobs: RayJobs;
  readonly service: Service;
  readonly record: JobRecord;
  readonly loggers: readonly Logger[];
  readonly samples: SampledEpisodes;
  readonly folder: ClusterFolder;
  readonly settings: ClusterSettings;
  /** The run validates and stops: it makes none of its steps. */
  readonly onlyValidates: boolean;
  readonly io: RunIo;
  /** Effect of a signal on the job. */
  readonly leaveOrStop: LeaveOrStop;
}

/** Asks whether a job that is no longer followed goes on. */
export type LeaveOrStop = () => Promise<"leave" | "stop">;

export interface JobEnd {
  /** `left`: the job goes on. `incomplete`: it ended without an error before its last step. */
  readonly kind: "succeeded" | "incomplete" | "failed" | "stopped" | "left";
  /** The newest step with metrics. */
  readonly step: number;
  /** The newest step that is made: of a job that continues a run, also steps of the jobs before it. */
  readonly reached: number;
  readonly totalSteps: number;
  /** The newest complete checkpoint, on the cluster. */
  readonly lastSaved: { readonly step: number; readonly folder: string } | undefined;
  /** Cause of a job that failed. */
  readonly cause?: string | undefined;
}

/** Follows the job of a run to its end; a signal, a lost folder and too many failures end that earlier. */
export async function watchJob(options: JobWatchOptions): Promise<JobEnd> {
  const { jobs, record, folder, io } = options;
  const follower = openFollower(options);
  const watch = new Watch(options);
  watch.start();
  let details: JobDetails | undefined;
  try {
    details = await jobs.follow(record.submission_id, (line) => watch.line(follower, line), watch.signal);
  } catch (error) {
    if (watch.reason === undefined) {
      await follower.finish().catch(() => {});
      throw error;
    }
  } finally {
    watch.end();
  }
  if (watch.reason === "folder") {
    await jobs.stop(record.submission_id);
    throw folder.signal.reason;
  }
  await follower.finish();
  const { step, reached, totalSteps, lastSaved } = follower;
  const so = { step, reached, totalSteps, lastSaved };
  if (details) return ended(details, { ...options, follower, so });
  if (watch.tooMany === undefined && (await options.leaveOrStop()) === "leave") return { kind: "left", ...so };
  io.err(`stopping the job ${record.submission_id}\n`);
  await jobs.stop(record.submission_id);
  if (watch.tooMany === undefined) return { kind: "stopped", ...so };
  return { kind: "failed", ...so, cause: failureText(options.service, watch.tooMany) };
}

function openFollower({ trainer, loggers, samples, folder, io }: JobWatchOptions): JobFollower {
  return new JobFollower({
    log: trainer.openLog(),
    loggers,
    file: join(folder.dir, JOB_LOG_FILE),
    notify: (text) => io.err(`${text}\n`),
    takeSamples: () => samples.take(),
    onTotal: (total_steps) => void folder.describe({ total_steps }).catch(() => {}),
  });
}

const BETWEEN_LOOKS_MS = 2000;
/** A job without a line for this long is asked what it waits for. */
const QUIET_MS = 30_000;

/** Looks whether following the job is to end before the job does. */
class Watch {
  /** Reason why it ended. */
  reason: "signal" | "failures" | "folder" | undefined;
  /** The failures that were too many. */
  tooMany: Counts | undefined;
  private readonly options: JobWatchOptions;
  private readonly following = new AbortController();
  private readonly failures: FailureWatch;
  private readonly onSignal = () => this.quit("signal");
  private readonly onLost = () => this.quit("folder");
  private timers: ReturnType<typeof setTimeout>[] = [];
  private hasLine = false;

  constructor(options: JobWatchOptions) {
    this.options = options;
    this.failures = new FailureWatch(options.settings.maxFailedShare);
  }

  get signal(): AbortSignal {
    return this.following.signal;
  }

  start(): void {
    const { io, folder } = this.options;
    this.timers = [
      setInterval(() => this.look(), BETWEEN_LOOKS_MS),
      setTimeout(() => void this.askWhy().catch(() => {}), QUIET_MS),
    ];
    io.signal.addEventListener("abort", this.onSignal, { once: true });
    folder.signal.addEventListener("abort", this.onLost, { once: true });
    if (io.signal.aborted) this.onSignal();
  }

  end(): void {
    const { io, folder } = this.options;
    for (const timer of this.timers) clearTimeout(timer);
    io.signal.removeEventListener("abort", this.onSignal);
    folder.signal.removeEventListener("abort", this.onLost);
  }

  line(follower: JobFollower, line: LogLine): void {
    this.hasLine = true;
    follower.line(line);
  }

  private look(): void {
    this.tooMany ??= this.failures.see(countsOf(this.options.service));
    if (this.tooMany) this.quit("failures");
  }

  private async askWhy(): Promise<void> {
    const { jobs, record, io } = this.options;
    if (this.hasLine) return;
    const { status, message } = await jobs.details(record.submission_id, this.signal);
    if (status === "PENDING") io.err(`the job has not started yet: ${message || "the cluster does not say why"}\n`);
  }

  private quit(why: NonNullable<Watch["reason"]>): void {
    this.reason ??= why;
    this.following.abort(new Error("No longer followed"));
  }
}

interface Followed extends Pick<JobWatchOptions, "trainer" | "onlyValidates"> {
  readonly follower: JobFollower;
  readonly so: Omit<JobEnd, "kind">;
}

function ended(details: JobDetails, { follower, trainer, onlyValidates, so }: Followed): JobEnd {
  const isWhole = onlyValidates || so.reached >= so.totalSteps;
  if (details.status === "SUCCEEDED") return { kind: isWhole ? "succeeded" : "incomplete", ...so };
  if (details.status === "STOPPED") return { kind: "stopped", ...so };
  const cause = follower.cause();
  // What is known of the trainer's own errors comes first.
  const explained = cause && trainer.explain(cause.message);
  return { kind: "failed", ...so, cause: explained === cause?.message ? jobFailureText(details, cause) : explained };
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
