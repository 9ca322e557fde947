/** What is said about a job that did not succeed. */
import { expect, test } from "vitest";
import type { Cause } from "../../../src/cluster/ray/cause.ts";
import type { JobDetails } from "../../../src/cluster/ray/contract.ts";
import { jobFailureText } from "../../../src/cluster/ray/failure.ts";

const JOB: JobDetails = {
  submission_id: "sum-1",
  entrypoint: "python main.py",
  status: "FAILED",
  message: "Job entrypoint command failed with exit code 1\nlast line.",
  error_type: "JOB_ENTRYPOINT_COMMAND_ERROR",
  start_time: 1,
  end_time: 2,
  metadata: {},
  driver_exit_code: 1,
};
const worker = { name: "Rank", pid: 7, ip: "10.0.0.2" };
const SEE = "grpu jobs logs sum-1 prints its whole log.";

const cases: [name: string, job: Partial<JobDetails>, cause: Cause | undefined, said: string][] = [
  [
    "a worker's error",
    {},
    { worker, lines: [], message: "ValueError: bad\n  reward" },
    `the worker Rank (pid 7, 10.0.0.2) raised ValueError: bad reward. ${SEE}`,
  ],
  ["the driver's error", {}, { lines: [], message: "ValueError: x." }, `the driver raised ValueError: x. ${SEE}`],
  [
    "the error of a worker on the driver's node",
    {},
    { worker: { name: "Rank", pid: 7 }, lines: [], message: `ValueError: a.b${"c".repeat(600)}` },
    `the worker Rank (pid 7) raised ValueError: a.b${"c".repeat(485)}. ${SEE}`,
  ],
  [
    "the error of a worker without a name",
    {},
    { worker: { name: "", pid: 7 }, lines: [], message: "E: a" },
    `the worker (pid 7) raised E: a. ${SEE}`,
  ],
  [
    "an exit status below the signals",
    { driver_exit_code: 128 },
    undefined,
    `its command ended with exit status 128 (last line). ${SEE}`,
  ],
  [
    "resources that did not become free",
    { error_type: "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", message: "late" },
    undefined,
    "the resources that its driver reserves did not become free in time (late). Reserve less for the driver, or wait until other jobs have ended.",
  ],
  [
    "a driver that does not start",
    { error_type: "JOB_SUPERVISOR_ACTOR_START_FAILURE", message: "no" },
    undefined,
    "its driver could not be started (no). Check what the driver reserves and its environment; runtime_env*.log and dashboard_agent.log on the head node tell more.",
  ],
  [
    "no type",
    { error_type: undefined, driver_exit_code: 2 },
    undefined,
    `its command ended with exit status 2 (last line). ${SEE}`,
  ],
  [
    "a lost supervisor",
    { error_type: undefined, message: "The Supervisor is gone", driver_exit_code: undefined },
    undefined,
    "the process on the cluster that looked after it died. Its node may have been lost: submit it again.",
  ],
  ["an exit status", {}, undefined, `its command ended with exit status 1 (last line). ${SEE}`],
  [
    "a killed driver",
    { driver_exit_code: 137 },
    undefined,
    "its driver was killed (exit status 137). The usual reason is the memory of the node that it ran on: look at that, and submit it again.",
  ],
  ["a signal", { driver_exit_code: 139 }, undefined, `signal 11 ended its driver (exit status 139). ${SEE}`],
  [
    "packages",
    {
      error_type: "RUNTIME_ENV_SETUP_FAILURE",
      message: "Traceback\n    ERROR: no such wheel.\n",
      driver_exit_code: undefined,
    },
    undefined,
    "its environment could not be set up (ERROR: no such wheel). Check the packages for pip and that the cluster's nodes reach a package index; if its files are missing there, submit it again.",
  ],
  [
    "resources",
    { error_type: "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", message: "no", driver_exit_code: undefined },
    undefined,
    "no node of the cluster has what its driver reserves (no). Reserve less for the driver, or add a node.",
  ],
  [
    "a lost node",
    { error_type: "JOB_SUPERVISOR_ACTOR_DIED", message: "Job supervisor actor died: x", driver_exit_code: undefined },
    undefined,
    "the process on the cluster that looked after it died. Its node may have been lost: submit it again.",
  ],
  ["no reason", { message: "", driver_exit_code: undefined }, undefined, `the cluster gives no reason. ${SEE}`],
];

test.each(cases)("%s", (_, job, cause, said) => {
  expect(jobFailureText({ ...JOB, ...job }, cause)).toBe(`Cannot finish the job sum-1: ${said}`);
});

test("a job that was stopped, and those that did not fail", () => {
  expect(jobFailureText({ ...JOB, status: "STOPPED" })).toContain("it was stopped");
  for (const status of ["SUCCEEDED", "RUNNING", "PENDING"] as const)
    expect(jobFailureText({ ...JOB, status })).toBeUndefined();
});
