/**
 * Every type of the training loop: the values that pass from stage to stage, the stages, the run and its state. Types
 * alone, so that a stage knows this page and no other stage.
 */
import type { Span } from "../../engine/compute/profile/profile.ts";
import type { Advantages, Backend, Metrics, TopTokens } from "../../engine/contract/backend.ts";
import type { RewardScorer } from "../../engine/contract/reward_model.ts";
import type { Teacher } from "../../engine/contract/teacher.ts";
import type { DataMark } from "../data/dataset.ts";
import type { BatchOrder } from "../data/order.ts";
import type { PackedRows } from "../data/pack.ts";
import type { Episode, Task, Trajectory, TrajectoryGroup } from "../data/types.ts";
import type { CheckpointStore } from "../log/checkpoint/store.ts";
import type { Logger } from "../log/logger.ts";
import type { Evaluate, Example, Rollout, RolloutResult } from "../task/rollout.ts";
import type { LoopSettings, Partly } from "./settings.ts";

/** A group before its rewards are checked. */
export interface Grouping extends Omit<TrajectoryGroup, "trajectories"> {
  readonly trajectories: readonly Trajectory[];
}

/** Decides which trajectories are compared with each other. Compact filtering has removed the masked episodes. */
export type GroupingHook = (episodes: readonly Episode[], settings: LoopSettings) => readonly Grouping[];

/** Groups that mode `episode` of rejection sampling holds back for a later step: part of a checkpoint. */
export interface Held {
  readonly groups: readonly TrajectoryGroup[];
  /** Tasks that some, but not all, attempts solved. */
  readonly solvePartial: number;
}

/** Trajectories from which a rejection function chooses. */
export interface Candidates {
  readonly episodes: readonly Episode[];
  readonly groups: readonly TrajectoryGroup[];
  /** Groups that an earlier step held back. */
  readonly held: Held;
}

/** Groups that train now, and groups that are held for a later batch. */
export interface Accepted {
  readonly groups: readonly TrajectoryGroup[];
  readonly held: Held;
}

/** The input of a rejection function: the groups that are large enough. */
export interface RejectionInput extends Candidates {
  /** Tasks of this step that some, but not all, attempts solved. */
  readonly solvePartial: number;
}

type Choice = readonly TrajectoryGroup[] | Accepted;

/** Returns the groups that train now; as {@link Accepted} when it holds some back for a later step. */
export type RejectionFunction = (input: RejectionInput, settings: LoopSettings) => Choice | Promise<Choice>;

/** Rows with the log-probs that the loss compares with. */
export interface ProcessedRows extends PackedRows {
  readonly oldLogprobs?: Float32Array | undefined;
  readonly refLogprobs?: Float32Array | undefined;
  readonly rolloutIsWeights?: Float32Array | undefined;
  /** The critic's, before the update, [T]. */
  readonly values?: Float32Array | undefined;
  /** Log-probs of the sampled tokens, [T], where distillation turns them into advantages. */
  readonly teacherLogprobs?: Float32Array | undefined;
  /** The teacher's most likely tokens, with a distillation loss over them. */
  readonly teacherTop?: TopTokens | undefined;
}

/** A critic's targets: the return of each trained token that an estimator has seen. Both [T]. */
export interface CriticTargets {
  readonly returns: Float32Array;
  /** 1 where there is one. */
  readonly mask: Uint32Array;
}

/** Advantages of rows, with the targets of the critic where the backend has one. */
export interface RowAdvantages extends Advantages {
  readonly targets?: CriticTargets | undefined;
}

/** Result of an estimator. */
export interface EstimatedAdvantages extends Advantages {
  /** Returns at the same level. Absent: equal to the advantages. */
  readonly returns?: Float32Array | undefined;
}

/** The input of `update`: rows with their advantages. */
export interface AdvantageRows extends ProcessedRows {
  readonly advantages: RowAdvantages;
}

/** Estimator and settings for one role of a step. */
export interface AdvantageOptions {
  readonly name: string;
  readonly norm_adv_by_std_in_grpo: boolean;
  /** Settings of the estimator. */
  readonly settings?: Readonly<Record<string, unknown>>;
  /** Trained tokens of each trajectory (or step), [N]. */
  readonly lengths?: Uint32Array | undefined;
  /** The critic's values of those tokens, concatenated. Absent without a critic. */
  readonly values?: Float32Array | undefined;
  /** Reward of the greedy attempt at each trajectory's task, [N]. Absent where none was played. */
  readonly baselines?: Float32Array | undefined;
  /** Rewards by name, [N] each: what every trajectory has among its signals. */
  readonly components?: Readonly<Record<string, Float32Array>> | undefined;
  /** Discount and lambda (`algorithm.gamma`, `algorithm.lam`); null: the estimator's own. */
  readonly gamma?: number | null;
  readonly lam?: number | null;
}

/**
 * Turns rewards into advantages: `row` holds one per trajectory, `token` those of the trained tokens, concatenated.
 * `groups` gives each trajectory's group, 0 to G-1. Called once per role and step, so that a batch-level estimator
 * sees the whole role.
 */
export interface EstimateAdvantages {
  (
    rewards: Float32Array,
    groups: Uint32Array,
    options: AdvantageOptions,
  ): EstimatedAdvantages | Promise<EstimatedAdvantages>;
  /** Called before the run. @throws {ConfigError} for an unknown estimator or setting. */
  readonly check?: (name: string, settings: Readonly<Record<string, unknown>>) => void;
}

/** The input of `log`. */
export interface StepReport {
  readonly metrics: Metrics;
  readonly episodes: readonly Episode[];
  readonly groups: readonly TrajectoryGroup[];
}

/** A stage's value and metrics. */
export interface Staged<T> {
  readonly value: T;
  readonly metrics: Metrics;
}

/** The parts of a run that a stage may use. */
type StageParts = Pick<
  Run,
  "backend" | "settings" | "rollout" | "evaluate" | "estimate" | "grouping" | "rejection" | "loggers" | "signal"
> &
  Partial<Pick<Run, "warn" | "failures" | "teacher" | "rewardModel">>;

/** Everything that a stage may use. */
export interface StageContext extends StageParts {
  /** Called with each episode when its attempt ends, in any order. */
  readonly onEpisode?: (episode: Episode) => void;
  /** Number of the training step, from 1; during validation the number of steps done. */
  readonly step: number;
  readonly totalSteps: number;
  readonly epoch: number;
  readonly isValidation: boolean;
  /** During validation, the number of tasks in earlier batches. Absent: 0. */
  readonly firstTask?: number;
  /** The backend's weight version before a training step: one that the step has not changed means that nothing trained. */
  readonly versionBefore?: number;
}

type Stage<T> = Staged<T> | Promise<Staged<T>>;

/** The eight stages of a training step, as functions. */
export interface Stages {
  /** Attempts every task. */
  generate(tasks: readonly Task[], context: StageContext): Stage<readonly Episode[]>;
  /** Groups the trajectories that are compared with each other, each with a finite reward. */
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
  /** Passes the step's metrics and rollouts to the loggers. */
  log(report: StepReport, context: StageContext): Promise<void>;
}

/** State of asynchronous generation: part of a checkpoint. */
export interface GenerationState {
  /** Number of the next task, counted over all batches. */
  readonly next: number;
  /**
   * Tasks started and not yet trained on. A resumed run attempts them again with the weights of the checkpoint: none is
   * lost, and none is trained on twice.
   */
  readonly pending: readonly number[];
  /** Counts of the whole run for `async/total_syncs`, `buffer_consumed` and `buffer_filtered`. */
  readonly counts?: { readonly syncs: number; readonly consumed: number; readonly filtered: number };
  /** All sessions of a run on a fixed set of recorded ones, in their order. */
  readonly sessions?: readonly string[];
  /** Sessions on which a run on the latest recorded ones has trained. */
  readonly trained?: readonly string[];
}

/** Asynchronous generation, as the loop sees it. */
export interface Generation {
  readonly state: GenerationState;
  /** Continues from a checkpoint, or from the start. */
  resume(state: LoopState): void;
  /** Ends running rollouts; settles when none is left. */
  stop(): Promise<void>;
}

/** Episodes that exist already, in the place of rollouts: the stage `generate` of training steps. Validation samples. */
export interface EpisodeSource extends Generation {
  /** The recorded episodes of a batch of {@link TrainOptions.tasks}. */
  generate(tasks: readonly Task[], context: StageContext): Promise<Staged<readonly Episode[]>>;
}

/**
 * State of a run; the rest follows from the settings and the backend's checkpoint. Plain JSON, because it is part of
 * every checkpoint. Immutable once a step is whole.
 */
export interface LoopState {
  /** Supervised steps done. */
  readonly warmup: number;
  /** Training steps done. */
  readonly step: number;
  /** The step of the last validation; -1 before the first. */
  readonly validated: number;
  /** Groups that rejection sampling holds back. */
  readonly held: Held;
  /** Optimiser steps in the weights of this state, as the backend counts them. */
  readonly weightVersion: number;
  /** Optimiser steps in the critic of this state, where there is one. */
  readonly criticVersion?: number;
  /** How far each logger had written, by its name. */
  readonly logged: Readonly<Record<string, number>>;
  /** The rows that determine the order of batches; absent before the first step. */
  readonly data?: DataMark;
  /** The last consecutive steps that trained no group; absent where the last step trained one. */
  readonly untrained?: { readonly steps: number; readonly why: string };
  /** State in asynchronous training, and with recorded episodes. */
  readonly generation?: GenerationState;
  /** The best validation after the first step so far, with `training.metric_for_best_model`. */
  readonly best?: { readonly step: number; readonly value: number };
}

/** The reward model of a run, as its rollouts ask it. */
export interface RewardJudge {
  /** Gives each trajectory without a reward its score. */
  judge(result: RolloutResult): Promise<RolloutResult>;
  /** Makes the model again after the loss of its device. */
  recover(): Promise<void>;
}

/** Counts the failures of rollouts, and shows the first of each kind. */
export interface FailureLog {
  /** @param where the attempt that failed, for display */
  add(error: unknown, where: string): void;
  /** Shows how often each kind occurred. */
  finish(): void;
}

/** A run with every choice made. */
export interface Run {
  readonly backend: Backend;
  readonly settings: LoopSettings;
  readonly tasks: { readonly train: readonly Task[]; readonly val: readonly Task[] };
  /** Order of the training tasks that each step takes. */
  readonly order: BatchOrder;
  /** Attempts a task. */
  readonly rollout: Rollout;
  /** Judges each episode after its rollout: a reward for trajectories that have none, signals, metrics. */
  readonly evaluate?: Evaluate | undefined;
  /** Turns rewards into advantages, by the estimator's name. */
  readonly estimate: EstimateAdvantages;
  /** Prompts with worked answers, for the warm-up. */
  readonly examples: readonly Example[];
  readonly stages: Stages;
  /** One training step over the stages: `trainStep`, or the list in `pipeline.stages`. */
  readonly step: (run: Run, state: LoopState) => Promise<LoopState>;
  /** Source of the stage `generate` in asynchronous training, and with recorded episodes. */
  readonly generation?: Generation | undefined;
  /** Groups trajectories. Default: those of one task and one name. */
  readonly grouping?: GroupingHook | undefined;
  /** Chooses the groups that train, instead of the mode of `rejection_sample`. */
  readonly rejection?: RejectionFunction | undefined;
  /** Shows each distinct message once. Default: in every logger that can. */
  readonly warn: (message: string) => void;
  /** Teacher of a run with `distillation.enabled`. Default for `distillation.teacher_kind=self`: the student itself. */
  readonly teacher?: Teacher | undefined;
  /** Scores what a rollout or an environment leaves without a reward. */
  readonly rewardModel?: RewardJudge | undefined;
  /** Default: shown with `warn`. */
  readonly failures: FailureLog;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore<LoopState> | undefined;
  /** Ends the run with a checkpoint and abandons the current step. */
  readonly signal: AbortSignal;
  /**
   * Called at the end of each stage of a step, by its name, and of each `warmup` step, `step`, `validate` and `save`, which
   * hold them. Must not throw.
   */
  readonly onPhase?: ((phase: Span) => void) | undefined;
}

type Choices = "estimate" | "examples" | "stages" | "step" | "loggers" | "signal" | "warn" | "failures";

/** Options of `train`; those that have defaults may be absent. */
export interface TrainOptions
  extends Omit<Run, "settings" | "order" | "generation" | "tasks" | "rewardModel" | Choices>,
    Partial<Pick<Run, Choices>> {
  /** Held-out tasks are validated on; absent: no validation. */
  readonly tasks: { readonly train: readonly Task[]; readonly val?: readonly Task[] | undefined };
  readonly settings?: Partly<LoopSettings>;
  /** Scores what a rollout or an environment leaves without a reward. */
  readonly rewardModel?: RewardScorer | undefined;
  /** Trains on recorded episodes, one batch after the other in the order of `tasks.train`. */
  readonly source?: EpisodeSource | undefined;
}

/** How a call of {@link train} ended. */
export interface TrainOutcome {
  /** After the last whole step. */
  readonly state: LoopState;
  /** False when the signal stopped the run before its last step. */
  readonly isComplete: boolean;
}
