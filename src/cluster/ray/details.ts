/** The cluster's facts about a job, checked and without the values of its environment. */
import { RemoteError } from "../../leaves/errors.ts";
import type { JobDetails, JobStatus } from "./contract.ts";
import { withoutEscapes } from "./lines.ts";

const STATUSES: readonly string[] = ["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"] satisfies JobStatus[];

/** The job has ended and stays in this state. */
export function isTerminal({ status }: Pick<JobDetails, "status">): boolean {
  return status === "STOPPED" || status === "SUCCEEDED" || status === "FAILED";
}

/** @throws {RemoteError} for a value that does not describe a job. */
export function readDetails(value: unknown, act: string): JobDetails {
  const details = (value ?? {}) as Record<string, unknown>;
  if (!STATUSES.includes(details.status as string))
    throw new RemoteError(
      `Cannot ${act}: the answer does not describe a Ray job (status ${JSON.stringify(details.status)}). Check that the address is that of a Ray dashboard.`,
      { retryable: false },
    );
  const hide = hiding(details.runtime_env);
  return {
    submission_id: text(details.submission_id) ?? "",
    entrypoint: hide(text(details.entrypoint) ?? ""),
    status: details.status as JobStatus,
    message: hide(withoutEscapes(text(details.message) ?? "")),
    error_type: text(details.error_type),
    start_time: number(details.start_time),
    end_time: number(details.end_time),
    metadata: (details.metadata ?? {}) as Record<string, string>,
    driver_exit_code: number(details.driver_exit_code),
  };
}

const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);
const number = (value: unknown) => (typeof value === "number" ? value : undefined);

/** Shorter values are no secrets, and would hide parts of words. */
const SECRET_LENGTH = 8;
const SECRET_NAME = /TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL/i;

/** Ray repeats the environment in some messages. */
function hiding(runtimeEnv: unknown): (text: string) => string {
  const env = ((runtimeEnv ?? {}) as { env_vars?: Record<string, unknown> }).env_vars ?? {};
  const secrets = Object.entries(env)
    .filter(([name, value]) => SECRET_NAME.test(name) && typeof value === "string" && value.length >= SECRET_LENGTH)
    .map(([, value]) => String(value));
  return (shown) => secrets.reduce((rest, secret) => rest.replaceAll(secret, "***"), shown);
}
