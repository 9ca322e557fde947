/** Stage 8, log: the step's metrics and rollouts to every logger. */
import type { Metrics } from "../../contract/backend.ts";
import type { Episode, TrajectoryGroup } from "../../data/types.ts";
import type { StageContext } from "../stages.ts";
import { whyUntrained } from "../untrained.ts";

export interface StepReport {
  readonly metrics: Metrics;
  readonly episodes: readonly Episode[];
  readonly groups: readonly TrajectoryGroup[];
}

export async function log(report: StepReport, context: StageContext): Promise<void> {
  const { step, totalSteps, loggers } = context;
  const { metrics, episodes } = report;
  const note = whyUntrained(report);
  const record = { phase: "train", step, totalSteps, metrics, episodes, ...(note && { note }) } as const;
  for (const logger of loggers) await logger.log(record);
}
