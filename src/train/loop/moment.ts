/** The stage that a step is at, for loggers that show it. */
import type { Moment } from "../log/logger.ts";
import type { StageContext } from "./contract.ts";

/** Tells every logger that shows it. */
export function reportMoment(
  { loggers, isValidation, step, totalSteps }: StageContext,
  moment: Pick<Moment, "doing" | "done" | "total" | "unit">,
): void {
  const phase = isValidation ? "val" : "train";
  for (const logger of loggers) logger.during?.({ phase, step, totalSteps, ...moment });
}
