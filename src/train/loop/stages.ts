/**
 * The eight stages of a training step as a record of functions. Each takes the value of the stage before it, and returns
 * its own value and metrics. To change the pipeline, pass another record to `train`:
 *
 *     // Replace a stage.
 *     stages: { ...STAGES, reject: keepHardestHalf }
 *     // Wrap a stage: run something before, after or instead.
 *     stages: { ...STAGES, update: async (batch, context) => { inspect(batch); return STAGES.update(batch, context); } }
 *     // Skip a stage: return its input.
 *     stages: { ...STAGES, reject: ({ groups, held }) => ({ value: { groups, held }, metrics: {} }) }
 *
 * To add or reorder stages, name them in `pipeline.stages` (see pipeline/pipeline.ts), or pass another `step` (see
 * `trainStep`: the eight calls in a row).
 */
import type { Stages } from "./contract.ts";
import { roleAdvantages } from "./stages/advantages.ts";
import { packBatch } from "./stages/batch.ts";
import { generate } from "./stages/generate.ts";
import { log } from "./stages/log.ts";
import { process } from "./stages/process.ts";
import { reject } from "./stages/reject.ts";
import { transform } from "./stages/transform.ts";
import { update } from "./stages/update.ts";

/** The built-in stages; replace one with `{ ...STAGES, update: mine }`. */
export const STAGES: Stages = {
  generate,
  transform,
  reject,
  batch: packBatch,
  process,
  advantages: roleAdvantages,
  update,
  log,
};
