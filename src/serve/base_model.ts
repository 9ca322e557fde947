/** The names of the server's base model. */
import type { Engine } from "../contract/engine.ts";
import type { RunRecord } from "./checkpoint/record.ts";

export interface BaseModelOptions {
  readonly engine: Engine;
  /** Names by which clients request the base model. */
  readonly modelNames: readonly string[];
}

/**
 * The name of a run's base model, for its clients: the one that its client used. A server that lacks this name but has
 * the same weights answers with its own folder, so that checkpoints outlive an alias and a moved folder. A record
 * without a fingerprint counts as the same weights: loading compares them.
 */
export function baseModelOf(
  { baseModel, fingerprint }: Pick<RunRecord, "baseModel" | "fingerprint">,
  { engine, modelNames }: BaseModelOptions,
): string {
  if (modelNames.includes(baseModel)) return baseModel;
  if (fingerprint !== undefined && fingerprint !== engine.fingerprint) return baseModel;
  return modelNames.includes(engine.folder) ? engine.folder : modelNames[0]!;
}
