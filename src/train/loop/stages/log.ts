/** Stage 8, log: passes the step's metrics and rollouts to every logger. */
import type { StageContext, StepReport } from "../contract.ts";
import { whyUntrained } from "../untrained.ts";

export async function log(report: StepReport, context: StageContext): Promise<void> {
  const { step, totalSteps, loggers } = context;
  const { metrics, episodes } = report;
  const note = whyUntrained(report, context);
  const record = { phase: "train", step, totalSteps, metrics, episodes, ...(note && { note }) } as const;
  for (const logger of loggers) await logger.log(record);
}
