/** A client's loss in the engine's terms. */

import { LOGITS_TEMPERATURE, type LossRequest } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { LEAST_TEMPERATURE, MOST_TEMPERATURE } from "./prompt_request.ts";

/** @throws ConfigError for a temperature outside its limits */
export function lossRequestOf(name: string, sent: LossRequest["config"]): LossRequest {
  const { [LOGITS_TEMPERATURE]: temperature, ...config } = sent;
  if (temperature === undefined) return { name, config };
  if (typeof temperature === "number" && temperature >= LEAST_TEMPERATURE && temperature <= MOST_TEMPERATURE)
    return { name, config, temperature };
  throw new ConfigError(
    `Cannot take the loss ${name.slice(0, 100)}: ${LOGITS_TEMPERATURE} must be a number in [${LEAST_TEMPERATURE}, ${MOST_TEMPERATURE}] (${String(temperature).slice(0, 100)}).`,
    { path: "loss_fn_config" },
  );
}
