/** `job.json` in a run's folder: which job the run is, so that another process can follow it, and serve its workers. */
import { chmodSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ConfigError, fileError } from "../../../leaves/errors.ts";
import type { ClusterBackend } from "../../config/fields/backend_fields.ts";

export const JOB_FILE = "job.json";
/** The job's whole log, without colours. */
export const JOB_LOG_FILE = "job.log";

export interface JobRecord {
  readonly submission_id: string;
  /** Address of the cluster's dashboard. */
  readonly address: string;
  /** The trainer that runs there. */
  readonly system: ClusterBackend;
  readonly version: string;
  /** Address at which the cluster's workers look for rewards and agents, and the key that they send. */
  readonly service: { readonly host: string; readonly port: number; readonly url: string; readonly token: string };
  /** Folder of the checkpoints, on the cluster. */
  readonly checkpoints: string;
  /** ISO 8601. */
  readonly submitted: string;
}

/** Readable by its owner alone, because it holds the service's key. */
export function writeJobRecord(dir: string, record: JobRecord): void {
  const file = join(dir, JOB_FILE);
  try {
    writeFileSync(file, `${JSON.stringify(record, null, 2)}\n`, { mode: 0o600 });
    chmodSync(file, 0o600);
  } catch (cause) {
    throw fileError(cause, { act: "keep the job's record", file }) ?? cause;
  }
}

/** @throws {ConfigError} where the folder holds no record of that job */
export function readJobRecord(dir: string, id: string | undefined): JobRecord {
  const file = join(dir, JOB_FILE);
  const advice = "Name the folder of the run with training.default_local_dir=DIR, or start the run again.";
  if (!existsSync(file))
    throw new ConfigError(`Cannot attach to a job: ${dir} has no ${JOB_FILE}. ${advice}`, { kind: "data" });
  const record = parse(readFileSync(file, "utf8"));
  if (record === undefined)
    throw new ConfigError(`Cannot attach to a job: ${file} is damaged. ${advice}`, { kind: "data" });
  if (id === undefined || id === record.submission_id) return record;
  throw new ConfigError(
    `Cannot attach to the job ${id}: the run in ${dir} is the job ${record.submission_id}. ${advice}`,
    { kind: "data" },
  );
}

function parse(text: string): JobRecord | undefined {
  try {
    const record = JSON.parse(text) as Partial<JobRecord> | null;
    const isWhole = typeof record?.submission_id === "string" && typeof record.service?.token === "string";
    return isWhole ? (record as JobRecord) : undefined;
  } catch {
    return undefined;
  }
}
