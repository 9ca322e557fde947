/**
 * A training step as a list of stages by name (`pipeline.stages`): skip, add, reorder or wrap stages. `trainStep` is the
 * published order written out; this is the same step as data.
 *
 *     pipeline.stages=[generate, transform, reject, drop_longest, batch, process, advantages, timed(update), log]
 *
 * Stages pass values by name. Each declares what it needs and what it gives, so a list that cannot work is refused
 * before the run (order.ts). A stage whose inputs are missing in a step (no group is left, for example) is skipped. A
 * list may hold several rounds: a second `generate` or `batch` drops the values made from the first, so that no round
 * trains on rows of an earlier one.
 */
import { ConfigError } from "../../../leaves/errors.ts";
import type { Run, StageContext, Stages } from "../contract.ts";
import { STAGE_ORDER } from "../settings.ts";
import { startStep, toTheEnd } from "../step.ts";
import { afterStep } from "../untrained.ts";
import { builtIns } from "./built_in.ts";
import { checkOrder, outdatedBy } from "./order.ts";
import { registeredStages, wrappers } from "./registered.ts";
import type { PipelineStage, Slot, StepValues } from "./stage.ts";

/** True for the stages of `trainStep`. */
export function isPublishedOrder(names: readonly string[]): boolean {
  return names.length === STAGE_ORDER.length && names.every((name, i) => name === STAGE_ORDER[i]);
}

/**
 * The stages of a list with their wrappers, over the run's record of functions.
 * @throws {ConfigError} for an unknown name, and for a list in which a stage lacks an input.
 */
export function readPipeline(names: readonly string[], stages: Stages): readonly PipelineStage[] {
  const builtIn = new Map(builtIns(stages).map((stage) => [stage.name, stage]));
  const pipeline = names.map((name) => readStage(name, builtIn));
  checkOrder(pipeline);
  return pipeline;
}

/** Reads `update`, `timed(update)` or `a(b(update))`. */
function readStage(text: string, builtIn: ReadonlyMap<string, PipelineStage>): PipelineStage {
  const [, wrapper, inner] = /^([^()\s]+)\((.+)\)$/.exec(text.trim()) ?? [];
  if (wrapper === undefined) return builtIn.get(text.trim()) ?? registeredStages.find(text.trim());
  return wrappers.find(wrapper)(readStage(inner!, builtIn));
}

/**
 * A training step over stages by name.
 * @throws {ConfigError} as {@link readPipeline}, when called and not only in the step.
 */
export function pipelineStep(names: readonly string[], stages: Stages): Run["step"] {
  const pipeline = readPipeline(names, stages);
  const updates = pipeline.filter(({ name }) => name === "update").length;
  return async (run, state) => {
    const { tasks, context, metrics, note } = startStep(run, state);
    const stageContext = updates > 1 ? withOldLogprobs(context) : context;
    const hasTrained = () => run.backend.weightVersion !== state.weightVersion;
    let values: Values = { tasks, held: state.held };
    for (const stage of pipeline) {
      const inputs = { ...values, metrics: { ...metrics } };
      values = without(values, outdatedBy(stage));
      if (stage.needs.some((slot) => inputs[slot] === undefined)) continue;
      const isFinal = stage.name === "update" || hasTrained();
      const { metrics: measured = {}, ...stageValues } = await stage.run(
        inputs,
        isFinal ? toTheEnd(stageContext) : stageContext,
      );
      checkReturned(stage, stageValues);
      values = { ...values, ...note(stage.name, { value: stageValues, metrics: measured }) };
    }
    const { held, episodes = [], groups = [] } = values;
    return afterStep(state, { step: context.step, held, report: { metrics, episodes, groups }, context });
  };
}

type Values = Partial<StepValues> & Pick<StepValues, "held">;

function without(values: Values, slots: ReadonlySet<Slot>): Values {
  return Object.fromEntries(Object.entries(values).filter(([slot]) => !slots.has(slot as Slot))) as unknown as Values;
}

function checkReturned({ name, gives }: PipelineStage, values: object): void {
  const other = Object.keys(values).find((slot) => !gives.includes(slot as Slot));
  if (other === undefined) return;
  throw new ConfigError(
    `Cannot take ${other} from the stage ${name}: it does not declare it. Add ${other} to its gives.`,
    { path: "pipeline.stages" },
  );
}

/** Several updates of one batch all compare with the policy before the first update. */
function withOldLogprobs(context: StageContext): StageContext {
  const { settings } = context;
  const { rollout_correction } = settings.algorithm;
  if (rollout_correction.bypass_mode !== null) return context;
  const correction = { ...rollout_correction, bypass_mode: false };
  return {
    ...context,
    settings: { ...settings, algorithm: { ...settings.algorithm, rollout_correction: correction } },
  };
}
