/** One model after the other, so that one at a time is in memory. */

import { setting } from "../../config/schema.ts";
import { gatewaySettings } from "../gateway/gateway_settings.ts";
import { openRecording } from "../gateway/recorded_rollout.ts";
import { adoptCheckpoint } from "../model/checkpoint_shape.ts";
import type { Session } from "../session.ts";
import { type Evaluation, evaluateModel, type ModelAttempts } from "./evaluate_model.ts";
import type { NamedModel } from "./named_models.ts";

/** Finds what is wrong with the last model before the first one has taken its hours. */
async function checkAll(models: readonly NamedModel[], session: Session): Promise<void> {
  if (setting(session.config, "rllm.backend") !== "local") return;
  for (const { checkpoint } of models)
    if (checkpoint !== undefined) await adoptCheckpoint(session, checkpoint, { isTrained: false });
}

/** The attempts of each model; those until the signal, when it aborts. */
export async function evaluateModels(
  models: readonly NamedModel[],
  it: Omit<Evaluation, "recording">,
): Promise<ModelAttempts[]> {
  const { io, session } = it;
  await checkAll(models, session);
  const tell = (line: string) => io.err(`gateway: ${line}\n`);
  const evaluated: ModelAttempts[] = [];
  await session.gateway?.open(tell);
  const recording = await openRecording(gatewaySettings(session.config), tell);
  try {
    for (const model of models) {
      if (io.signal.aborted) break;
      evaluated.push(await evaluateModel(model, { ...it, recording }));
    }
  } finally {
    await session.gateway?.close();
    await recording?.close();
  }
  return evaluated;
}
