/** Opens a model within a device's memory: the options of its plan, or an error that says what to change. */
import type { Device } from "../../../../engine/compute/device.ts";
import type { LanguageModelOptions } from "../../../../engine/model/language_model.ts";
import { OutOfMemoryError } from "../../../../leaves/errors.ts";
import { adviceFor } from "./advice.ts";
import { type Plan, planRun } from "./plan.ts";
import type { PlanRequest } from "./rehearsal.ts";

/**
 * The options that the work fits with.
 * @param options.isExact false where the work is a guess: then only weights that do not fit are refused. Default true.
 * @throws OutOfMemoryError with what to change, before anything is allocated.
 */
export async function fittingOptions(
  device: Device,
  work: Omit<PlanRequest, "info" | "budget">,
  { isExact = true }: { isExact?: boolean } = {},
): Promise<LanguageModelOptions> {
  const { live, budget } = device.memory;
  const request = { ...work, info: device.info, budget: budget - live };
  const plan = await planRun(request);
  const [load] = plan.phases;
  if (isExact && plan.fits) return plan.options;
  // Of unknown work, sequences may be short and many: the bytes of the cache limit them, not their number.
  const { maxSequences: _, ...cache } = { ...plan.options.cache };
  if (load!.peakBytes <= request.budget && !isExact)
    return { ...plan.options, cache: { ...cache, ...work.options.cache } };
  throw doesNotFit(plan, await adviceFor(request));
}

/** @param advice overrides that help, see {@link adviceFor} */
export function doesNotFit({ phases, budget }: Plan, advice: readonly string[]): OutOfMemoryError {
  const largest = phases.reduce((most, phase) => (phase.peakBytes > most.peakBytes ? phase : most));
  const parts = Object.entries(largest.parts)
    .sort(([, a], [, b]) => b - a)
    .slice(0, 3)
    .map(([name, bytes]) => `${name.replaceAll("_", " ")} ${gibibytes(bytes)}`);
  const what = `${largest.name} needs at least ${gibibytes(largest.peakBytes)} (${parts.join(", ")})`;
  return new OutOfMemoryError(
    `Cannot fit the run into the memory budget of ${gibibytes(budget)}: ${what}. ${adviceText(advice)}`,
    { label: largest.name, bytes: largest.peakBytes },
  );
}

/** `Set a=1, or b=2.` */
export function adviceText(advice: readonly string[]): string {
  if (advice.length === 0) return "Take a smaller model, or a device with more memory.";
  return `Set ${advice.join(", or ")}.`;
}

/** `7.9 GiB`, `31 MiB`. */
export function gibibytes(bytes: number): string {
  if (bytes < 2 ** 27) return `${Number((bytes / 2 ** 20).toPrecision(3))} MiB`;
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}
