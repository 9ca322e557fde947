/** Stages and wrappers by the names that `pipeline.stages` uses: the loop's own and the user's. */
import { createRegistry } from "../../../leaves/registry.ts";
import { BUILT_IN_STAGES } from "./built_in.ts";
import { asPipelineStage, type PipelineStage, type Slot, type StageDefinition, type StageWrapper } from "./stage.ts";

const setting = "pipeline.stages";
const builtIn = BUILT_IN_STAGES.map((stage) => [stage.name, stage] as const);

export const registeredStages = createRegistry<PipelineStage>("stage", {
  setting,
  builtIn,
  reserved: builtIn.map(([name]) => name),
});
export const wrappers = createRegistry<StageWrapper>("wrapper", { setting });

/**
 * Makes a stage known to `pipeline.stages`. The last registration of a name counts.
 * @throws {ConfigError} for the name of a built-in stage.
 */
export function registerStage<N extends Slot = never, U extends Slot = never, G extends Slot = never>(
  stage: StageDefinition<N, U, G>,
): void {
  registeredStages.register(stage.name, asPipelineStage(stage));
}

/** Makes a wrapper known to `pipeline.stages`, written as `name(stage)`. */
export function registerWrapper(name: string, wrap: StageWrapper): void {
  wrappers.register(name, wrap);
}
