/** Metrics of a batch of episodes. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import type { PromptOrigin } from "../../../engine/contract/trace.ts";
import { mean } from "../../../leaves/statistics.ts";
import { type Episode, TERMINATION_REASONS } from "../../data/types.ts";

/**
 * `batch/<name>`: means of the metrics that rollouts report. `batch/termination_reason/<reason>`: shares of all
 * episodes. `batch/rollouts_failed`: how many ended in an error. `batch/prompts_spliced`, `batch/prompts_diverged`: how
 * many prompts of later turns could not continue on the sampled tokens, so that they start a new row; absent for none.
 */
export function episodeMetrics(episodes: readonly Episode[]): Metrics {
  const metrics: Metrics = {};
  for (const name of new Set(episodes.flatMap((episode) => Object.keys(episode.metrics)))) {
    const values = episodes.map((episode) => episode.metrics[name]);
    metrics[`batch/${name}`] = mean(values.filter((value) => typeof value === "number"));
  }
  const countOf = (reason: string) => episodes.filter((each) => each.termination_reason === reason).length;
  metrics["batch/rollouts_failed"] = countOf("error");
  for (const reason of TERMINATION_REASONS)
    metrics[`batch/termination_reason/${reason}`] = countOf(reason) / Math.max(episodes.length, 1);
  for (const origin of ["spliced", "diverged"] as const) {
    const count = promptsOf(episodes, origin);
    if (count > 0) metrics[`batch/prompts_${origin}`] = count;
  }
  return metrics;
}

function promptsOf(episodes: readonly Episode[], origin: PromptOrigin): number {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((trajectory) => trajectory.steps));
  return steps.filter((step) => step.prompt_origin === origin).length;
}
