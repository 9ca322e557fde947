/**
 * The eight stages of a training step as a record of functions. Each takes the value of the one before and returns its
 * own with its metrics. To change the pipeline, pass another record to `train`:
 *
 *     // Replace a stage.
 *     stages: { ...STAGES, reject: keepHardestHalf }
 *     // Wrap one: run something before, after or instead.
 *     stages: { ...STAGES, update: async (batch, context) => { inspect(batch); return STAGES.update(batch, context); } }
 *     // Leave one out: return its input.
 *     stages: { ...STAGES, reject: ({ groups }) => ({ value: { groups, held: [] }, metrics: {} }) }
 *
 * To add or reorder stages, name them in `pipeline.stages` (see pipeline.ts), or pass another `step` (see `trainStep`:
 * it is the eight calls in a row).
 */
import type { Advantages, Backend, Metrics } from "../contract/backend.ts";
import type { PackedRows } from "../data/pack.ts";
import type { Episode, Task, TrajectoryGroup } from "../data/types.ts";
import type { Logger } from "../log/logger.ts";
import type { Evaluate, Rollout } from "../task/rollout.ts";
import type { Failures } from "./rollout/failures.ts";
import type { LoopSettings } from "./settings.ts";
import { advantages, type EstimateAdvantages } from "./stages/advantages.ts";
import { batch } from "./stages/batch.ts";
import { generate } from "./stages/generate.ts";
import { log, type StepReport } from "./stages/log.ts";
import { process } from "./stages/process.ts";
import { type Accepted, type Candidates, type RejectionFunction, reject } from "./stages/reject.ts";
import { type GroupingHook, transform } from "./stages/transform.ts";
import { update } from "./stages/update.ts";

/** A stage's value and what it measured. */
export interface Staged<T> {
  readonly value: T;
  readonly metrics: Metrics;
}

/** What every stage may use. */
export interface StageContext {
  readonly backend: Backend;
  readonly settings: LoopSettings;
  readonly rollout: Rollout;
  /** Judges each episode after its rollout. */
  readonly evaluate?: Evaluate;
  readonly estimate: EstimateAdvantages;
  readonly grouping?: GroupingHook;
  /** In place of the mode of `rejection_sample`. */
  readonly rejection?: RejectionFunction;
  /** Tells the person something once, however often it is said. */
  readonly warn?: (message: string) => void;
  /** Called with each episode as its attempt ends, in any order. */
  readonly onEpisode?: (episode: Episode) => void;
  /** Shows and counts what rollouts throw. */
  readonly failures?: Failures;
  readonly loggers: readonly Logger[];
  /** Number of the training step, from 1; in validation the steps done. */
  readonly step: number;
  readonly totalSteps: number;
  readonly epoch: number;
  readonly isValidation: boolean;
  /** In validation, how many tasks were attempted before this batch. Absent: 0. */
  readonly firstTask?: number;
  readonly signal: AbortSignal;
}

/** Rows with the log-probs that the loss compares with. */
export interface ProcessedRows extends PackedRows {
  readonly oldLogprobs?: Float32Array;
  readonly refLogprobs?: Float32Array;
  readonly rolloutIsWeights?: Float32Array;
}

/** What `update` trains on: the rows, with an advantage for each. */
export interface AdvantageRows extends ProcessedRows {
  readonly advantages: Advantages;
}

/** A stage may answer at once or later. */
type Stage<T> = Staged<T> | Promise<Staged<T>>;

export interface Stages {
  /** Attempts every task. */
  generate(tasks: readonly Task[], context: StageContext): Stage<readonly Episode[]>;
  /** Puts trajectories that are compared with each other into groups, each with a finite reward. */
  transform(episodes: readonly Episode[], context: StageContext): Stage<readonly TrajectoryGroup[]>;
  /** Chooses the groups that train now, and those held back for a later step. */
  reject(candidates: Candidates, context: StageContext): Stage<Accepted>;
  /** Packs groups into rows of tokens. */
  batch(groups: readonly TrajectoryGroup[], context: StageContext): Stage<PackedRows>;
  /** Adds the log-probs of the old and the reference policy, where the loss needs them. */
  process(rows: PackedRows, context: StageContext): Stage<ProcessedRows>;
  /** Turns rewards into advantages. */
  advantages(rows: ProcessedRows, context: StageContext): Stage<AdvantageRows>;
  /** Takes the optimiser steps. */
  update(rows: AdvantageRows, context: StageContext): Stage<undefined>;
  /** Hands the step's metrics and rollouts to the loggers. */
  log(report: StepReport, context: StageContext): Promise<void>;
}

export const STAGES: Stages = { generate, transform, reject, batch, process, advantages, update, log };
