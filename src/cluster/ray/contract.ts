/**
 * Jobs that a Ray cluster runs for us, and its reports about them. @see
 * https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html
 */
import type { Clock } from "../../leaves/clock.ts";

/** A job for a cluster. */
export interface JobSpec {
  /** Chosen by us, so that a repeated submission starts nothing new. Letters, digits, `_`, `-` and `.`. */
  readonly submission_id: string;
  /** A shell command. It runs in the working directory. */
  readonly entrypoint: string;
  /** The working directory, which is also on the import path of the driver and of every worker. Paths are relative, with `/`. */
  readonly files: ReadonlyMap<string, Uint8Array>;
  /** Environment of the driver and of every worker. Every client of the cluster can read it. */
  readonly env: Readonly<Record<string, string>>;
  /** Packages that pip installs for this job: requirement specifiers. */
  readonly pip?: readonly string[] | undefined;
  /** The interpreter of the workers, not of the driver, whose `python` is the first on the PATH of its node. */
  readonly py_executable?: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  /** Resources that the driver reserves. Without it the driver runs on the head node and reserves nothing. Memory in bytes. */
  readonly resources?: JobResources | undefined;
}

export interface JobResources {
  readonly num_cpus?: number | undefined;
  readonly num_gpus?: number | undefined;
  readonly memory?: number | undefined;
}

export type JobStatus = "PENDING" | "RUNNING" | "STOPPED" | "SUCCEEDED" | "FAILED";

/** A job in the words of the cluster. Texts hold no value of the job's environment variables. */
export interface JobDetails {
  /** Empty for a driver that connected by itself (`ray.init()`): it can be listed, and nothing else. */
  readonly submission_id: string;
  readonly entrypoint: string;
  readonly status: JobStatus;
  /** Message for people: of a failed job the reason, often with the last lines of its log. */
  readonly message: string;
  /** Kind of its failure: `JOB_ENTRYPOINT_COMMAND_ERROR`, `RUNTIME_ENV_SETUP_FAILURE`, . */
  readonly error_type: string | undefined;
  /** Milliseconds since 1970. */
  readonly start_time: number | undefined;
  /** Milliseconds since 1970. */
  readonly end_time: number | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  /** The driver's exit status; 128 + n for a driver that signal n ended. */
  readonly driver_exit_code: number | undefined;
}

/** The process that wrote a line, by Ray's prefix `(name pid=N, ip=ADDRESS)`. */
export interface Worker {
  /** Name of the actor or task; empty where Ray gives none. */
  readonly name: string;
  readonly pid: number;
  /** Absent on the driver's own node. */
  readonly ip?: string | undefined;
}

/** A line of a job's log, without colours and other terminal escapes. */
export interface LogLine {
  /** Text without Ray's prefix and without the end of the line. */
  readonly text: string;
  /** Absent for what the driver writes. */
  readonly worker?: Worker | undefined;
}

/** Takes complete log lines, once each and in order, over reconnections. */
export type LineListener = (line: LogLine) => void;

/** A function like `fetch`, of absolute addresses. Ray refuses what `fetch` of Node sends, because it looks like a browser. */
export type RequestFunction = (url: string, init: RequestInit) => Promise<Response>;

export interface TailRequest {
  readonly headers: Readonly<Record<string, string>>;
  /** Takes the text of each message when it arrives. */
  readonly onText: (text: string) => void;
  /** Closes the connection. */
  readonly signal: AbortSignal;
}

/** How a WebSocket ended. */
export interface TailEnd {
  /** 1000 after a proper end, 1006 for a connection that broke. */
  readonly code: number;
  /** The HTTP status of a server that refused the connection. */
  readonly status?: number | undefined;
  /** Reason in the words of the server or of the operating system. */
  readonly reason: string;
}

/** Opens a WebSocket and reads it to its end. Never throws. */
export type TailFunction = (url: string, request: TailRequest) => Promise<TailEnd>;

export interface RayOptions {
  /** @see rayAddress */
  readonly address: string;
  /** Sent as a bearer token and never shown. */
  readonly token?: string | undefined;
  /** Further headers of every request, for proxies in front of the dashboard. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly request: RequestFunction;
  readonly tail: TailFunction;
  /** Takes messages for people: lost connections, what could not be read. */
  readonly notify?: ((message: string) => void) | undefined;
  /** How long to try while the cluster does not answer, ms. Default 2 minutes. */
  readonly patienceMs?: number | undefined;
  /** Clock of pauses, silences and patience. Default: the system's. */
  readonly clock?: Clock | undefined;
}
