/** Loads the episodes of recorded groups, as the stage `generate` returns them. */
import type { TraceStore } from "../../../engine/contract/trace.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { largest, mean } from "../../../leaves/statistics.ts";
import type { Episode, Task } from "../../data/types.ts";
import { evaluationOf } from "../../task/rollout.ts";
import type { AttemptOptions, RecordedAttempt } from "../../trace/attempts.ts";
import type { StageContext, Staged } from "../contract.ts";
import { judged } from "../rollout/episode.ts";
import { episodeMetrics } from "../rollout/episode_metrics.ts";
import { recordedEpisode } from "./episode.ts";
import type { RecordedGroup } from "./scan.ts";
import { readAttempt } from "./scan.ts";

/** Source of episodes. */
export interface RecordedOptions extends AttemptOptions {
  readonly store: TraceStore;
  /** Tasks with the fields that an evaluator needs, by id; the others have what their sessions recorded. */
  readonly tasks?: readonly Task[] | undefined;
}

type LoadContext = Pick<StageContext, "settings" | "evaluate" | "backend" | "onEpisode">;

/**
 * The episodes of the groups, group by group.
 * @throws {ConfigError} for a session that is no longer in the store, or can no longer be trained on
 */
export async function loadEpisodes(
  groups: readonly RecordedGroup[],
  { context, ...options }: RecordedOptions & { readonly context: LoadContext },
): Promise<Staged<Episode[]>> {
  const tasks = new Map(options.tasks?.map((task) => [task.id, task]));
  const episodes: Episode[] = [];
  for (const [task_index, { sessions }] of groups.entries()) {
    for (const [i, { session_id, place }] of sessions.entries()) {
      const attempt = await loadAttempt(session_id, options);
      const task = tasks.get(attempt.task.id) ?? attempt.task;
      const rollout_index = place.rollout_index ?? i;
      const episode = await judge(
        recordedEpisode(attempt, {
          ...{ task, task_index, rollout_index },
          shaping: context.settings.workflow.workflow_args,
        }),
        context,
      );
      episodes.push(episode);
      context.onEpisode?.(episode);
    }
  }
  return { value: episodes, metrics: { ...episodeMetrics(episodes), ...lags(episodes, context) } };
}

async function loadAttempt(session_id: string, { store, ...options }: RecordedOptions): Promise<RecordedAttempt> {
  const session = await store.getSession(session_id);
  const traces = session ? await store.traces({ session_id }) : [];
  const attempt = session && readAttempt(session, { ...options, traces });
  if (typeof attempt === "object") return attempt;
  const why = attempt === undefined ? "it is no longer in the trace store" : `it has changed (${attempt})`;
  throw new ConfigError(
    `Cannot train on the session ${session_id}: ${why}. Restore it, or start a new run with training.resume_mode=disable.`,
    { kind: "data" },
  );
}

async function judge(episode: Episode, { evaluate }: LoadContext): Promise<Episode> {
  return evaluate ? judged(episode, evaluationOf(await evaluate(episode.task, episode))) : episode;
}

/** Optimiser steps between the weights that sampled and those that are trained, over calls. */
function lags(episodes: readonly Episode[], { backend }: LoadContext): Record<string, number> {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((each) => each.steps));
  const lag = steps.flatMap(({ weight_version }) =>
    weight_version === undefined ? [] : [backend.weightVersion - weight_version],
  );
  return {
    "traces/sessions": episodes.length,
    "traces/calls": steps.length,
    ...(lag.length > 0 && {
      "traces/weight_version_lag/mean": mean(lag),
      "traces/weight_version_lag/max": largest(lag),
    }),
  };
}
