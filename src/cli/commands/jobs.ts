/** `grpu jobs`: the jobs of a Ray cluster. */
import type { Command, Input, Io, Option } from "../command.ts";

const CLUSTER: readonly Option[] = [
  {
    flag: "--address",
    value: "URL",
    describe: "the cluster's dashboard, http://HOST:8265. Default: $RAY_ADDRESS, else this machine",
  },
  { flag: "--header", value: "NAME:VALUE", describe: "a further header of every request; may repeat", repeat: true },
];
const JSON_OUTPUT: Option = { flag: "--json", describe: "print JSON on standard output" };

const NOTES =
  "The token of a cluster that asks for one is read from RAY_AUTH_TOKEN, or from the file RAY_AUTH_TOKEN_PATH.";

type Run = (input: Input, io: Io) => Promise<number | undefined>;

/** Loads the command's module when it runs. */
const run = (name: "listJobs" | "showJob" | "printLog" | "stopJob" | "deleteJobs"): Run => {
  return async (input, io) => (await import("./jobs_of_cluster.ts"))[name](input, io);
};

export const jobsCommands: readonly Command[] = [
  {
    path: "jobs list",
    summary: "list the jobs that the cluster remembers, the latest first",
    options: [...CLUSTER, JSON_OUTPUT],
    examples: ["grpu jobs list", "grpu jobs list --address http://head:8265"],
    notes: NOTES,
    run: run("listJobs"),
  },
  {
    path: "jobs show",
    summary: "print a job's state, and why it failed",
    args: "<ID>",
    options: [...CLUSTER, JSON_OUTPUT],
    examples: ["grpu jobs show sum-1"],
    notes: NOTES,
    run: run("showJob"),
  },
  {
    path: "jobs logs",
    summary: "print a job's log",
    args: "<ID>",
    options: [
      {
        flag: "--follow",
        describe: "print lines while they are written, until the job ends; exit status 1 if it failed",
      },
      ...CLUSTER,
    ],
    examples: ["grpu jobs logs sum-1", "grpu jobs logs sum-1 --follow"],
    notes: NOTES,
    run: run("printLog"),
  },
  {
    path: "jobs stop",
    summary: "end a job",
    args: "<ID>",
    options: CLUSTER,
    examples: ["grpu jobs stop sum-1"],
    notes: `${NOTES}\nThe job's processes get SIGTERM and, 3 seconds later, SIGKILL. Ray does not stop a job that still waits for resources.`,
    run: run("stopJob"),
  },
  {
    path: "jobs delete",
    summary: "make the cluster forget jobs that have ended",
    args: "<ID...>",
    options: CLUSTER,
    examples: ["grpu jobs delete sum-1 sum-2"],
    notes: NOTES,
    run: run("deleteJobs"),
  },
];
