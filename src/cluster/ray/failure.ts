/** Reasons why a job did not succeed, in our words, and what to do. */
import type { Cause } from "./cause.ts";
import type { JobDetails } from "./contract.ts";

/** Status of a shell for a command that signal n ended, less n. */
const SIGNALLED = 128;
const SIGKILL = 9;

/** One message of the form `Cannot ...`; undefined for a job that succeeded or has not ended. */
export function jobFailureText(job: JobDetails, cause?: Cause): string | undefined {
  const { submission_id, status } = job;
  if (status === "STOPPED")
    return `Cannot finish the job ${submission_id}: it was stopped. Submit it again to continue.`;
  if (status !== "FAILED") return undefined;
  const [what, todo] = explain(job, cause);
  return `Cannot finish the job ${submission_id}: ${what}. ${todo}.`;
}

function explain(job: JobDetails, cause: Cause | undefined): readonly [string, string] {
  const { error_type, message, submission_id, driver_exit_code } = job;
  const described = BY_TYPE[error_type ?? ""];
  if (described) return [`${described[0]} (${lastLine(message)})`, described[1]];
  const more = `grpu jobs logs ${submission_id} prints its whole log`;
  if (cause) return [`${whoOf(cause)} raised ${oneLine(cause.message)}`, more];
  if (driver_exit_code !== undefined)
    return [whatOfExit(driver_exit_code, message), driver_exit_code === KILLED ? SEE_MEMORY : more];
  if (/actor died|supervisor/i.test(message))
    return ["the process on the cluster that looked after it died", "Its node may have been lost: submit it again"];
  return [lastLine(message), more];
}

const KILLED = SIGNALLED + SIGKILL;
const SEE_MEMORY = "The usual reason is the memory of the node that it ran on: look at that, and submit it again";

function whatOfExit(code: number, message: string): string {
  if (code === KILLED) return `its driver was killed (exit status ${code})`;
  if (code > SIGNALLED) return `signal ${code - SIGNALLED} ended its driver (exit status ${code})`;
  return `its command ended with exit status ${code} (${lastLine(message)})`;
}

/** Descriptions of failures before the job's command ran, by Ray's name for them. */
const BY_TYPE: Readonly<Record<string, readonly [string, string]>> = {
  RUNTIME_ENV_SETUP_FAILURE: [
    "its environment could not be set up",
    "Check the packages for pip and that the cluster's nodes reach a package index; if its files are missing there, submit it again",
  ],
  JOB_SUPERVISOR_ACTOR_START_TIMEOUT: [
    "the resources that its driver reserves did not become free in time",
    "Reserve less for the driver, or wait until other jobs have ended",
  ],
  JOB_SUPERVISOR_ACTOR_START_FAILURE: [
    "its driver could not be started",
    "Check what the driver reserves and its environment; runtime_env*.log and dashboard_agent.log on the head node tell more",
  ],
  JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE: [
    "no node of the cluster has what its driver reserves",
    "Reserve less for the driver, or add a node",
  ],
};

/** `the driver`, or `the worker TaskRunner (pid 812, 10.0.0.7)`. */
function whoOf({ worker }: Cause): string {
  if (!worker) return "the driver";
  const place = worker.ip === undefined ? "" : `, ${worker.ip}`;
  return `the worker ${worker.name} (pid ${worker.pid}${place})`.replace("  ", " ");
}

const oneLine = (text: string) =>
  text
    .trim()
    .replaceAll(/\s*\n\s*/g, " ")
    .slice(0, 500)
    .replace(/\.$/, "");

/** The last line of a traceback says what is wrong. */
function lastLine(message: string): string {
  return oneLine(message.trim().split("\n").at(-1) ?? "") || "the cluster gives no reason";
}
