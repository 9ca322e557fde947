/** The files of a run's folder: their names, and the form of what they hold. Plain types, for writers, readers and the page. */
import type { Phase } from "./logger.ts";

export const METRICS_FILE = "metrics.jsonl";
export const SAMPLES_FILE = "samples.jsonl";
export const GROUPS_FILE = "groups.jsonl";
export const CONFIG_FILE = "config.yaml";
export const RUN_FILE = "run.json";
export const REPORT_FILE = "report.html";
/** File of a run with `--profile`. */
export const PROFILE_FILE = "profile.json";

/** A line of `metrics.jsonl`: the phase, its step, and the metrics by name. */
export type MetricsLine = { readonly phase: Phase; readonly step: number } & Readonly<Record<string, number | string>>;

/** A line of `samples.jsonl`: one attempt at a validation task. */
export interface SampleLine {
  readonly step: number;
  readonly task: string;
  readonly prompt: string;
  readonly response: string;
  readonly reward: number | null;
  readonly is_correct: boolean;
}

/** A line of `groups.jsonl`: the rewards of each group of attempts of a training step. */
export interface GroupsLine {
  readonly step: number;
  readonly groups: readonly GroupEntry[];
}

export interface GroupEntry {
  readonly task: string;
  /** The agent: a task has one group per agent. */
  readonly name: string;
  /** One per attempt, to four digits; null for an attempt without a reward. */
  readonly rewards: readonly (number | null)[];
  /** Attempts that solved the task. */
  readonly solved: number;
}

/** `run.json`: written when a run starts, and again when it ends. */
export interface RunFacts {
  readonly title: string;
  /** The task, the model, the device. */
  readonly subtitle: string;
  /** Bytes of device memory that the run was given, chosen or set. */
  readonly memory_budget_bytes?: number;
  readonly total_steps: number;
  /** ISO 8601. */
  readonly started: string;
  /** Absent while the run is in progress, and after a crash. */
  readonly ended?: string;
  readonly complete?: boolean;
}
