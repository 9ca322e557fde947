/** A stage of a pipeline: the values that it needs, and those that it gives. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import type { PackedRows } from "../../data/pack.ts";
import type { Episode, Task, TrajectoryGroup } from "../../data/types.ts";
import type { Grouping, Held, ProcessedRows, RowAdvantages, StageContext, Staged } from "../contract.ts";

/** The values of a step, by slot. */
export interface StepValues {
  /** Present from the start. */
  readonly tasks: readonly Task[];
  readonly episodes: readonly Episode[];
  /** Episodes whose trajectories may still join a group. */
  readonly eligible: readonly Episode[];
  /** Groups whose rewards are not checked yet. */
  readonly groupings: readonly Grouping[];
  readonly groups: readonly TrajectoryGroup[];
  /** Present from the start: what earlier steps held back. The last value goes into the checkpoint. */
  readonly held: Held;
  readonly rows: PackedRows;
  readonly logprobs: Pick<
    ProcessedRows,
    "oldLogprobs" | "refLogprobs" | "rolloutIsWeights" | "teacherLogprobs" | "teacherTop" | "values"
  >;
  readonly advantages: RowAdvantages;
  /** Present from the start: the metrics of the stages so far. */
  readonly metrics: Metrics;
}

export type Slot = keyof StepValues;

export type StageResult<G extends Slot> = Partial<Pick<StepValues, G>> & { readonly metrics?: Metrics };

/** A stage that reads and gives only the slots it declares. */
export interface StageDefinition<N extends Slot = Slot, U extends Slot = Slot, G extends Slot = Slot> {
  readonly name: string;
  readonly needs: readonly N[];
  /** Optional inputs. */
  readonly uses?: readonly U[];
  /**
   * A slot that it also reads keeps its value unless the stage returns one. Any other slot is made new: its earlier
   * value and all values made from that are dropped, even when the stage returns none or is skipped.
   */
  readonly gives: readonly G[];
  run(
    values: Pick<StepValues, N> & Partial<Pick<StepValues, U>>,
    context: StageContext,
  ): StageResult<G> | undefined | Promise<StageResult<G> | undefined> | Promise<void>;
}

/** A stage as wrappers and the loop see it, over any slots. */
export interface PipelineStage extends Omit<StageDefinition, "run"> {
  run(values: Partial<StepValues>, context: StageContext): Promise<StageResult<Slot>>;
}

/** Runs something before, after or instead of a stage. Spread the stage and give another `run`. */
export type StageWrapper = (stage: PipelineStage) => PipelineStage;

/** Erases the slot types: `checkOrder` and the step ensure that a stage has its inputs whenever it runs. */
export function asPipelineStage<N extends Slot, U extends Slot, G extends Slot>(
  stage: StageDefinition<N, U, G>,
): PipelineStage {
  const { name, needs, uses, gives } = stage;
  const run: PipelineStage["run"] = async (values, context) =>
    (await stage.run(values as Parameters<typeof stage.run>[0], context)) ?? {};
  return { name, needs, ...(uses && { uses }), gives, run };
}

/** A stage's value as the slot that it gives. */
export function valueAs<S extends Slot>(slot: S, { value, metrics }: Staged<StepValues[S]>) {
  return { [slot]: value, metrics } as unknown as StageResult<S>;
}
