/** A stage of a pipeline: what it needs of a step, and what it gives. */
import type { Advantages, Metrics } from "../../contract/backend.ts";
import type { PackedRows } from "../../data/pack.ts";
import type { Episode, Task, TrajectoryGroup } from "../../data/types.ts";
import type { Grouping, Held, ProcessedRows, StageContext } from "../contract.ts";

/** What a step gathers on its way. */
export interface StepValues {
  /** There from the start. */
  readonly tasks: readonly Task[];
  readonly episodes: readonly Episode[];
  /** Episodes whose trajectories may still come into a group. */
  readonly eligible: readonly Episode[];
  /** Groups whose rewards nothing has checked yet. */
  readonly groupings: readonly Grouping[];
  readonly groups: readonly TrajectoryGroup[];
  /** There from the start: what earlier steps held back. What is left of it goes into the checkpoint. */
  readonly held: Held;
  readonly rows: PackedRows;
  readonly logprobs: Pick<ProcessedRows, "oldLogprobs" | "refLogprobs" | "rolloutIsWeights">;
  readonly advantages: Advantages;
  /** There from the start: what the stages so far have measured. */
  readonly metrics: Metrics;
}

export type Slot = keyof StepValues;

export type Given<G extends Slot> = Partial<Pick<StepValues, G>> & { readonly metrics?: Metrics };

/** A stage: typed, so that it reads and gives only what it says. */
export interface StageDefinition<N extends Slot = Slot, U extends Slot = Slot, G extends Slot = Slot> {
  readonly name: string;
  readonly needs: readonly N[];
  /** Read where it is there. */
  readonly uses?: readonly U[];
  /**
   * Slots that it also reads it changes: what it does not return stays as it was. The others it makes afresh: from then
   * on, what was made of their earlier value is gone, also where it returns none or is passed over.
   */
  readonly gives: readonly G[];
  run(
    values: Pick<StepValues, N> & Partial<Pick<StepValues, U>>,
    context: StageContext,
  ): Given<G> | undefined | Promise<Given<G> | undefined> | Promise<void>;
}

/** A stage that wrappers and the loop see: any slots. */
export interface PipelineStage extends Omit<StageDefinition, "run"> {
  run(values: Partial<StepValues>, context: StageContext): Promise<Given<Slot>>;
}

/** Runs something before, after or instead of a stage. Spread the stage and give another `run`. */
export type StageWrapper = (stage: PipelineStage) => PipelineStage;

/** What a stage needs is there whenever it runs: `checkOrder` and the step see to it. */
export function asPipelineStage<N extends Slot, U extends Slot, G extends Slot>(
  stage: StageDefinition<N, U, G>,
): PipelineStage {
  const { name, needs, uses, gives } = stage;
  const run: PipelineStage["run"] = async (values, context) =>
    (await stage.run(values as Parameters<typeof stage.run>[0], context)) ?? {};
  return { name, needs, ...(uses && { uses }), gives, run };
}

/** What is made of what: each slot of what comes before it. */
const ORDER: readonly Slot[] = ["tasks", "episodes", "eligible", "groupings", "groups", "rows"];
/** Made of the rows, and not of each other. */
const OF_ROWS: readonly Slot[] = ["logprobs", "advantages"];

/** Slots whose values are of no use once the stage has had its turn, unless it gives them. */
export function outdatedBy({ needs, uses = [], gives }: PipelineStage): ReadonlySet<Slot> {
  const made = gives.filter((slot) => !needs.includes(slot) && !uses.includes(slot));
  const first = Math.min(...made.map((slot) => ORDER.indexOf(slot)).filter((place) => place >= 0));
  const later = first < ORDER.length ? [...ORDER.slice(first + 1), ...OF_ROWS] : [];
  return new Set([...made, ...later]);
}
