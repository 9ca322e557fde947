/** Contract of a trainer on a cluster, whichever it is: a job, and a reader of the job's log. */
import type { Problem } from "../../train/config/problem.ts";
import type { JobSpec, LogLine } from "./contract.ts";

export interface JobPlan {
  readonly job: JobSpec;
  /** Errors make the run impossible; warnings name what has no effect. */
  readonly problems: readonly Problem[];
  /** The command as people read it: its first line, then what belongs to it. */
  readonly command: readonly string[];
  /** Facts worked out for the run, one line each, for instance which GPUs do what. */
  readonly facts: readonly string[];
  /** The nodes that the run needs, and the GPUs on each; absent: the trainer itself checks. */
  readonly gpus?: { readonly nodes: number; readonly perNode: number } | undefined;
  /** CPUs that the run's processes hold at once, by what holds them; absent: no more than any cluster has. */
  readonly cpus?: Readonly<Record<string, number>> | undefined;
}

export type TrainerEvent =
  /** Metrics of a step under verl's names; step 0 is the validation before training. */
  | { readonly kind: "metrics"; readonly step: number; readonly metrics: Readonly<Record<string, number>> }
  /** How many steps the run will have made at its end. */
  | { readonly kind: "total"; readonly steps: number }
  /** The step that the trainer says it is at as it ends. Its metrics may lie in the log of an earlier job. */
  | { readonly kind: "reached"; readonly step: number }
  | { readonly kind: "resumed"; readonly step: number; readonly folder: string }
  /** The folder is not complete before `saved`. */
  | { readonly kind: "saving"; readonly step: number; readonly folder: string }
  | { readonly kind: "saved"; readonly step: number; readonly folder: string }
  /** A data set was opened; `kept` counts the rows whose prompt is not too long. */
  | { readonly kind: "rows"; readonly all: number; readonly kept: number }
  /** A rollout or a reward raised an error; the trainer goes on with the rest of the batch. */
  | { readonly kind: "failure"; readonly message: string };

/** Follows one job. It gets every line once and in order, and keeps what later lines refer to. */
export interface TrainerLog {
  /** The newest complete checkpoint. */
  readonly lastSaved: { readonly step: number; readonly folder: string } | undefined;
  /** Returns the events that a line reports; most lines report none. */
  read(line: LogLine): TrainerEvent[];
  /** Returns the events of the last lines, once the job has ended. */
  finish?(): TrainerEvent[];
  /** The line without what the trainer's logger adds, in which tracebacks are searched. */
  plain?(line: LogLine): LogLine;
}
