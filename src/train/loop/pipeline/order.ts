/** Whether a list of stages can work: which values each stage drops, and whether every stage has its inputs. */
import { ConfigError } from "../../../leaves/errors.ts";
import { registeredStages } from "./registered.ts";
import type { PipelineStage, Slot } from "./stage.ts";

/** Each slot is made from the one before it. */
const ORDER: readonly Slot[] = ["tasks", "episodes", "eligible", "groupings", "groups", "rows"];
/** Both are made from the rows, not from each other. */
const OF_ROWS: readonly Slot[] = ["logprobs", "advantages"];

/** Slots whose values are stale after the stage's turn, unless it gives them. */
export function outdatedBy({ needs, uses = [], gives }: PipelineStage): ReadonlySet<Slot> {
  const made = gives.filter((slot) => !needs.includes(slot) && !uses.includes(slot));
  const first = Math.min(...made.map((slot) => ORDER.indexOf(slot)).filter((place) => place >= 0));
  const later = first < ORDER.length ? [...ORDER.slice(first + 1), ...OF_ROWS] : [];
  return new Set([...made, ...later]);
}

/** Present before the first stage. */
const FROM_THE_START: readonly Slot[] = ["tasks", "held", "metrics"];
/** Read after the last stage. */
const TO_THE_END: readonly Slot[] = ["held"];

/** @throws {ConfigError} for a stage that lacks an input, and for one whose output nothing reads. */
export function checkOrder(pipeline: readonly PipelineStage[]): void {
  const present = new Set<Slot>(FROM_THE_START);
  pipeline.forEach((stage, i) => {
    const missing = stage.needs.find((slot) => !present.has(slot));
    if (missing) refuse(pipeline, `${stage.name} needs ${missing}, which ${whoGives(pipeline, missing, i)}`);
    for (const slot of outdatedBy(stage)) present.delete(slot);
    for (const slot of stage.gives) present.add(slot);
  });
  pipeline.forEach(({ name, gives }, i) => {
    const readers = pipeline.slice(i + 1).flatMap(({ needs, uses = [] }) => [...needs, ...uses]);
    const read = new Set<Slot>([...readers, ...TO_THE_END]);
    if (gives.length === 0 || gives.some((slot) => read.has(slot))) return;
    refuse(pipeline, `nothing after ${name} reads what it gives (${gives.join(", ")}): move it up, or remove it`);
  });
}

function whoGives(pipeline: readonly PipelineStage[], slot: Slot, at: number): string {
  const isSource = ({ needs, gives }: PipelineStage) => gives.includes(slot) && !needs.includes(slot);
  const before = pipeline.slice(0, at);
  const last = before.findLastIndex((stage) => outdatedBy(stage).has(slot) && !stage.gives.includes(slot));
  const maker = before.slice(0, Math.max(last, 0)).findLast(isSource);
  if (maker) return `${pipeline[last]!.name} drops: put ${maker.name} between them`;
  const later = pipeline.slice(at + 1).find(isSource);
  if (later) return `${later.name} gives only later: put ${later.name} before it`;
  const sources = registeredStages.names().filter((name) => isSource(registeredStages.find(name)));
  return `no stage before it gives: put ${sources.join(" or ")} before it`;
}

function refuse(pipeline: readonly PipelineStage[], why: string): never {
  const row = ({ name, needs, uses = [], gives }: PipelineStage) =>
    `  ${name}: ${[...needs, ...uses.map((slot) => `${slot}?`)].join(", ") || "-"} -> ${gives.join(", ") || "-"}`;
  throw new ConfigError(
    `Cannot run pipeline.stages: ${why}.\nThe stages, with what each needs -> gives:\n${pipeline.map(row).join("\n")}`,
    { path: "pipeline.stages" },
  );
}
