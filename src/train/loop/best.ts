/** Choice of the best validation of a run so far. */
import type { Metrics } from "../../engine/contract/backend.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { LoopState } from "./contract.ts";
import type { LoopSettings } from "./settings.ts";

/**
 * This validation, if it is the best so far by `metric_for_best_model`. The model before the first step does not count,
 * neither as the best nor as the value to beat.
 * @throws {ConfigError} when the validation does not measure `metric_for_best_model`
 */
export function bestOf(
  { best, step }: LoopState,
  { metrics, training }: { metrics: Metrics; training: LoopSettings["training"] },
): Pick<LoopState, "best"> {
  const { metric_for_best_model: name, greater_is_better } = training;
  if (name === null) return {};
  const value = metrics[name];
  if (value === undefined) {
    throw new ConfigError(
      `Cannot choose the best checkpoint: validation does not measure ${name}. Set training.metric_for_best_model to one of ${Object.keys(metrics).join(", ")}.`,
      { path: "training.metric_for_best_model" },
    );
  }
  if (step === 0) return {};
  // The first of equal values wins; NaN never does.
  const isBetter = best === undefined || (greater_is_better ? value > best.value : value < best.value);
  return isBetter && Number.isFinite(value) ? { best: { step, value } } : {};
}
