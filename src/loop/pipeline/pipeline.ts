import { ConfigError } from "../../errors.ts";
import type { LoopState, Run, StageContext, Stages } from "../contract.ts";
import { STAGE_ORDER } from "../settings.ts";
import { lookUp } from "../stages/hooks.ts";
import { STAGES } from "../stages.ts";
import { startStep, toTheEnd } from "../step.ts";
import { afterStep } from "../untrained.ts";
import { BUILT_IN_NAMES, builtIns } from "./builtin.ts";
import {
  asPipelineStage,
  outdatedBy,
  type PipelineStage,
  type Slot,
  type StageDefinition,
  type StageWrapper,
  type StepValues,
} from "./stage.ts";

interface Registry {
  readonly stages: Map<string, PipelineStage>;
  readonly wrappers: Map<string, StageWrapper>;
}

// On the global object, as loop/stages/hooks.ts.
const KEY = Symbol.for("grpu.loop.pipeline");
const shared = globalThis as unknown as Record<symbol, Registry | undefined>;
shared[KEY] ??= { stages: new Map(), wrappers: new Map() };
const registry: Registry = shared[KEY];

/**
 * Makes a stage known to `pipeline.stages`. The last registration of a name counts.
 * @throws {ConfigError} for the name of one of the loop's own stages.
 */
export function registerStage<N extends Slot = never, U extends Slot = never, G extends Slot = never>(
  stage: StageDefinition<N, U, G>,
): void {
  if (BUILT_IN_NAMES.includes(stage.name)) {
    throw new ConfigError(
      `Cannot register the stage ${stage.name} as the loop has one of that name: choose another, and put it into pipeline.stages`,
      { path: "pipeline.stages" },
    );
  }
  registry.stages.set(stage.name, asPipelineStage(stage));
}

/** Makes a wrapper known to `pipeline.stages`, where it is written `name(stage)`. */
export function registerWrapper(name: string, wrap: StageWrapper): void {
  registry.wrappers.set(name, wrap);
}

/** True for what `trainStep` runs. */
export function isPublishedOrder(names: readonly string[]): boolean {
  return names.length === STAGE_ORDER.length && names.every((name, i) => name === STAGE_ORDER[i]);
}

/**
 * The stages of a list, each wrapped as it says.
 * @throws {ConfigError} for a name that nothing registered, and for a list in which a stage lacks what it needs.
 */
export function readPipeline(names: readonly string[], stages: Stages): readonly PipelineStage[] {
  const table = new Map(registry.stages);
  for (const stage of builtIns(stages)) table.set(stage.name, stage);
  const pipeline = names.map((name) => readStage(name, table));
  checkOrder(pipeline);
  return pipeline;
}

/** `update`, `timed(update)`, `a(b(update))`. */
function readStage(text: string, table: ReadonlyMap<string, PipelineStage>): PipelineStage {
  const path = "pipeline.stages";
  const [, wrapper, inner] = /^([^()\s]+)\((.+)\)$/.exec(text.trim()) ?? [];
  if (wrapper === undefined) return lookUp(table, { name: text.trim(), kind: "stage", path });
  return lookUp(registry.wrappers, { name: wrapper, kind: "wrapper", path })(readStage(inner!, table));
}

/** There before the first stage. */
const FROM_THE_START: readonly Slot[] = ["tasks", "held", "metrics"];
/** Read after the last one. */
const TO_THE_END: readonly Slot[] = ["held"];

function checkOrder(pipeline: readonly PipelineStage[]): void {
  const there = new Set<Slot>(FROM_THE_START);
  pipeline.forEach((stage, i) => {
    const missing = stage.needs.find((slot) => !there.has(slot));
    if (missing) refuse(pipeline, `${stage.name} needs ${missing}, which ${whoGives(pipeline, missing, i)}`);
    for (const slot of outdatedBy(stage)) there.delete(slot);
    for (const slot of stage.gives) there.add(slot);
  });
  pipeline.forEach(({ name, gives }, i) => {
    const readers = pipeline.slice(i + 1).flatMap(({ needs, uses = [] }) => [...needs, ...uses]);
    const read = new Set<Slot>([...readers, ...TO_THE_END]);
    if (gives.length === 0 || gives.some((slot) => read.has(slot))) return;
    const what = gives.join(", ");
    refuse(pipeline, `nothing after ${name} reads what it gives (${what}): move it up, or leave it out`);
  });
}

function whoGives(pipeline: readonly PipelineStage[], slot: Slot, at: number): string {
  const isSource = ({ needs, gives }: PipelineStage) => gives.includes(slot) && !needs.includes(slot);
  const before = pipeline.slice(0, at);
  const last = before.findLastIndex((stage) => outdatedBy(stage).has(slot) && !stage.gives.includes(slot));
  const maker = before.slice(0, Math.max(last, 0)).findLast(isSource);
  if (maker) return `are gone with what ${pipeline[last]!.name} makes afresh: put ${maker.name} between them`;
  const later = pipeline.slice(at + 1).find(isSource);
  if (later) return `${later.name} gives only after it: put ${later.name} before it`;
  const known = [...builtIns(STAGES), ...registry.stages.values()].filter(isSource);
  return `no stage before it gives: put ${known.map(({ name }) => name).join(" or ")} before it`;
}

function refuse(pipeline: readonly PipelineStage[], why: string): never {
  const row = ({ name, needs, uses = [], gives }: PipelineStage) =>
    `  ${name}: ${[...needs, ...uses.map((slot) => `${slot}?`)].join(", ") || "-"} -> ${gives.join(", ") || "-"}`;
  throw new ConfigError(
    `Cannot run pipeline.stages as ${why}.\nStages, what they need and what they give:\n${pipeline.map(row).join("\n")}`,
    { path: "pipeline.stages" },
  );
}

/**
 * A training step over stages by name.
 * @throws {ConfigError} at once, for a list that cannot work.
 */
export function pipelineStep(
  names: readonly string[],
  stages: Stages,
): (run: Run, state: LoopState) => Promise<LoopState> {
  const pipeline = readPipeline(names, stages);
  const updates = pipeline.filter(({ name }) => name === "update").length;
  return async (run, state) => {
    const { tasks, context, metrics, note } = startStep(run, state);
    const own = updates > 1 ? withOldLogprobs(context) : context;
    const hasTrained = () => run.backend.weightVersion !== state.weightVersion;
    let values: Values = { tasks, held: state.held };
    for (const stage of pipeline) {
      const inputs = { ...values, metrics: { ...metrics } };
      values = without(values, outdatedBy(stage));
      if (stage.needs.some((slot) => inputs[slot] === undefined)) continue;
      const isFinal = stage.name === "update" || hasTrained();
      const { metrics: measured = {}, ...given } = await stage.run(inputs, isFinal ? toTheEnd(own) : own);
      checkGifts(stage, given);
      values = { ...values, ...note(stage.name, { value: given, metrics: measured }) };
    }
    const { held, episodes = [], groups = [] } = values;
    return afterStep(state, { step: context.step, held, report: { metrics, episodes, groups } });
  };
}

type Values = Partial<StepValues> & Pick<StepValues, "held">;

function without(values: Values, slots: ReadonlySet<Slot>): Values {
  return Object.fromEntries(
    Object.entries(values).filter(([slot]) => !slots.has(slot as Slot)),
  ) as unknown as Values;
}

function checkGifts({ name, gives }: PipelineStage, given: object): void {
  const other = Object.keys(given).find((slot) => !gives.includes(slot as Slot));
  if (other === undefined) return;
  throw new ConfigError(
    `Cannot take ${other} from the stage ${name} as it does not say that it gives it: add it to gives`,
    { path: "pipeline.stages" },
  );
}

/** Several updates of one batch compare with the policy before the first of them. */
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
