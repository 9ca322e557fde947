/** One model after the other, so that one at a time is in memory. */

import { setting } from "../../config/schema.ts";
import { adoptCheckpoint } from "../run/checkpoint_shape.ts";
import { gatewaySettings } from "../run/gateway_settings.ts";
import { openRecording } from "../run/recorded_rollout.ts";
import type { RunSession } from "../run/session.ts";
import { evaluateModel, type ModelAttempts, type ModelEvaluation } from "./evaluate_model.ts";
import type { NamedModel } from "./named_models.ts";

/** Finds what is wrong with the last model before the first one has taken its hours. */
async function checkAll(models: readonly NamedModel[], session: RunSession): Promise<void> {
  if (setting(session.config, "rllm.backend") !== "local") return;
  for (const { checkpoint } of models)
    if (checkpoint !== undefined) await adoptCheckpoint(session, checkpoint, { isTrained: false });
}

/** The attempts of each model; those until the signal, when it aborts. */
export async function evaluateModels(
  models: readonly NamedModel[],
  evaluation: Omit<ModelEvaluation, "recording">,
): Promise<ModelAttempts[]> {
  const { io, session } = evaluation;
  await checkAll(models, session);
  const notify = (line: string) => io.err(`gateway: ${line}\n`);
  const evaluated: ModelAttempts[] = [];
  await session.gateway?.open(notify);
  const recording = await openRecording(gatewaySettings(session.config), notify);
  try {
    for (const model of models) {
      if (io.signal.aborted) break;
      evaluated.push(await evaluateModel(model, { ...evaluation, recording }));
    }
  } finally {
    await session.gateway?.close();
    await recording?.close();
  }
  return evaluated;
}
