/** A client of Ray's Jobs API: submits, shows, follows, stops and deletes jobs of a cluster. */
import { ConfigError } from "../../leaves/errors.ts";
import { readErrorText, readReplyText } from "../../leaves/read_reply.ts";
import type { JobDetails, JobSpec, LineListener, RayOptions } from "./contract.ts";
import { isTerminal, readDetails } from "./details.ts";
import { Follower } from "./follow.ts";
import { packageFiles } from "./package.ts";
import { checkId, type RayCall, RayHttp } from "./request.ts";

export interface Submitted {
  readonly submission_id: string;
  /** False if the cluster had this job already: nothing new was started. */
  readonly isNew: boolean;
}

export interface StopOptions {
  readonly signal?: AbortSignal | undefined;
  /** How long to wait for the job's end, ms. Ray kills a driver 3 s after it asked it to end. Default 15 s. */
  readonly waitMs?: number | undefined;
}

/** An archive of half a gigabyte takes minutes over a slow line, ms. */
const UPLOAD_MS = 15 * 60_000;
/** A cluster that has just started takes its first job slowly, ms. */
const SUBMIT_MS = 2 * 60_000;
/** Message of a cluster that has no process for jobs yet; Ray asks to try again. */
const NO_AGENT = "No available agent to submit job";
const AGENT_WAIT_MS = 60_000;
const BETWEEN_TRIES_MS = 2_000;
const STOP_WAIT_MS = 15_000;
const BETWEEN_LOOKS_MS = 500;
/**
 * Time to wait for late entries. For about a second after a job's end, Ray's own watch over it enters a deleted job
 * again, as one whose supervisor died, ms. Clocks of two machines may differ by less than a minute.
 */
const LATE_ENTRY_MS = 1_500;
const RECENT_MS = 60_000;

export class RayJobs {
  private readonly http: RayHttp;
  private readonly options: RayOptions;

  /** @throws {ConfigError} for an address that is not a dashboard's. */
  constructor(options: RayOptions) {
    this.http = new RayHttp(options);
    this.options = options;
  }

  /** The dashboard's address, without a slash at its end. */
  get address(): string {
    return this.http.address;
  }

  /** The version of Ray on the cluster: `2.60.0`. @throws {RemoteError} for a cluster that cannot be reached or refuses. */
  async version(signal?: AbortSignal): Promise<string> {
    const body = await this.json("/api/version", { act: "read the version of Ray", signal });
    return String((body as { ray_version?: unknown }).ray_version ?? "unknown");
  }

  /**
   * Uploads the job's files and starts it. Repeating a submission is harmless: the id names one job.
   * @throws {ConfigError} if the cluster has another job of this id. @throws {RemoteError}
   */
  async submit(spec: JobSpec, signal?: AbortSignal): Promise<Submitted> {
    const { submission_id } = spec;
    const act = `submit the job ${checkId(submission_id)}`;
    const packageUri = spec.files.size > 0 ? await this.upload(spec.files, { act, signal }) : undefined;
    const { status, text } = await this.post(submission(spec, packageUri), { act, signal });
    if (status !== 500) return { submission_id, isNew: true };
    if (!text.includes("already exists")) throw this.http.refusal({ act }, status, text);
    const there = await this.details(submission_id, signal);
    if (!isSame(there, spec))
      throw new ConfigError(
        `Cannot ${act}: the cluster has another job of this id (${there.entrypoint}). Choose another id, or delete that job.`,
      );
    return { submission_id, isNew: false };
  }

  /** Asks for the job, and again while the cluster is still starting. Only a 500 has a text. */
  private async post(body: object, { act, signal }: Pick<RayCall, "act" | "signal">) {
    const call = { act, method: "POST", body, signal, expects: [500], timeoutMs: SUBMIT_MS } as const;
    for (let waited = 0; ; waited += BETWEEN_TRIES_MS) {
      const response = await this.http.call("/api/jobs/", call);
      const text = response.ok ? "" : await readErrorText(response);
      if (!text.includes(NO_AGENT) || waited >= AGENT_WAIT_MS) return { status: response.status, text };
      await this.http.clock.sleep(BETWEEN_TRIES_MS, signal);
    }
  }

  /** Puts an archive of the files onto the cluster unless it is there. @returns its URI */
  private async upload(files: JobSpec["files"], { act, signal }: Pick<RayCall, "act" | "signal">): Promise<string> {
    const { name, bytes } = await packageFiles(files);
    const path = `/api/packages/gcs/${name}`;
    const found = await this.http.call(path, { act, signal, expects: [404] });
    if (found.status === 404)
      await this.http.call(path, { act, signal, method: "PUT", body: bytes, timeoutMs: UPLOAD_MS });
    return `gcs://${name}`;
  }

  /** @throws {RemoteError} with status 404 for a job that the cluster does not know. */
  async details(id: string, signal?: AbortSignal): Promise<JobDetails> {
    const act = `show the job ${checkId(id)}`;
    return readDetails(await this.ofJob(id, { act, signal }), act);
  }

  /** Every job that the cluster remembers, the latest first; drivers that connected by themselves have no id. */
  async list(signal?: AbortSignal): Promise<JobDetails[]> {
    const act = "list the jobs";
    const found = await this.json("/api/jobs/", { act, signal });
    const jobs = (Array.isArray(found) ? found : []).map((each) => readDetails(each, act));
    return jobs.sort((a, b) => (b.start_time ?? 0) - (a.start_time ?? 0));
  }

  /**
   * Asks a job to end and waits for that. Ray does not stop a job that still waits for its resources: it stays `PENDING` until
   * they are free or the cluster gives it up (after 15 minutes), and ends then without having run.
   * @returns the job as it was last seen
   */
  async stop(id: string, { signal, waitMs = STOP_WAIT_MS }: StopOptions = {}): Promise<JobDetails> {
    await this.ofJob(id, { act: `stop the job ${checkId(id)}`, method: "POST", signal }, "/stop");
    const end = this.http.clock.now() + waitMs;
    for (;;) {
      const details = await this.details(id, signal);
      if (isTerminal(details) || this.http.clock.now() >= end) return details;
      await this.http.clock.sleep(BETWEEN_LOOKS_MS, signal);
    }
  }

  /** Makes the cluster forget a job that has ended. @throws {ConfigError} for one that has not. */
  async delete(id: string, signal?: AbortSignal): Promise<void> {
    const act = `delete the job ${checkId(id)}`;
    const details = await this.details(id, signal);
    if (!isTerminal(details))
      throw new ConfigError(
        `Cannot ${act}: it has not ended (${details.status}). Stop it first: grpu jobs stop ${id}.`,
      );
    await this.ofJob(id, { act, method: "DELETE", signal });
    if (Date.now() - (details.end_time ?? 0) > RECENT_MS) return;
    await this.http.clock.sleep(LATE_ENTRY_MS, signal);
    // Also where it is not there: that was the purpose.
    await this.http.call(`/api/jobs/${id}`, { act, method: "DELETE", signal, expects: [404, 500] });
  }

  /** The whole log so far. A job of many lines gives a large text. @see follow */
  async logs(id: string, signal?: AbortSignal): Promise<string> {
    const body = await this.ofJob(id, { act: `read the log of the job ${checkId(id)}`, signal }, "/logs");
    return String((body as { logs?: unknown }).logs ?? "");
  }

  /**
   * Gives each line of the log once and in order while it is written, over broken connections and a dashboard that starts
   * again, and waits for the job's end.
   * @throws {RemoteError} for an unknown job, and when the cluster does not answer for longer than `patienceMs`
   */
  follow(id: string, listener: LineListener, signal?: AbortSignal): Promise<JobDetails> {
    const { http, options } = this;
    checkId(id);
    const read = {
      details: (every: AbortSignal | undefined) => this.lookUp(id, every),
      logs: (every: AbortSignal | undefined) => this.logs(id, every),
    };
    return new Follower({ id, http, options, listener, read }).run(signal);
  }

  /** One try, for a loop that has its own patience. */
  private async lookUp(id: string, signal?: AbortSignal): Promise<JobDetails> {
    const act = `follow the job ${id}`;
    return readDetails(await this.ofJob(id, { act, signal, repeats: false, timeoutMs: 15_000 }), act);
  }

  private async ofJob(id: string, call: RayCall, more = ""): Promise<unknown> {
    return this.json(`/api/jobs/${id}${more}`, call);
  }

  private async json(path: string, call: RayCall): Promise<unknown> {
    const text = await readReplyText(await this.http.call(path, call));
    try {
      return JSON.parse(text);
    } catch {
      throw this.http.refusal(call, 200, "no JSON");
    }
  }
}

/** The body of a submission in the cluster's form; what is undefined is not sent. */
function submission(spec: JobSpec, packageUri: string | undefined): Record<string, unknown> {
  const { submission_id, entrypoint, env, pip, py_executable, metadata, resources } = spec;
  const reserved = Object.entries(resources ?? {}).map(([name, value]) => [`entrypoint_${name}`, value]);
  const runtime_env = { env_vars: env, working_dir: packageUri, pip, py_executable };
  return { submission_id, entrypoint, metadata, runtime_env, ...Object.fromEntries(reserved) };
}

function isSame(there: JobDetails, { entrypoint, metadata }: JobSpec): boolean {
  const keys = new Set([...Object.keys(there.metadata), ...Object.keys(metadata)]);
  return there.entrypoint === entrypoint && [...keys].every((key) => there.metadata[key] === metadata[key]);
}
