/**
 * ReMax's baselines: one greedy attempt at each task, whose rewards the task's rollouts are compared with. It trains
 * nothing and joins no group.
 */

import { ConfigError } from "../../../leaves/errors.ts";
import { mean } from "../../../leaves/statistics.ts";
import type { Episode, Task } from "../../data/types.ts";
import { groupBy } from "../group_by.ts";
import type { LoopSettings } from "../settings.ts";
import { type Attempt, attemptsAt } from "./attempts_per_task.ts";
import { isMasked, named } from "./eligible.ts";

type Naming = Pick<LoopSettings, "transform" | "compact_filtering">;

/** The `count` attempts at one task, and a greedy one after them. */
export function withGreedyAttempt(task: Task, options: { task_index: number; count: number }): Attempt[] {
  const { task_index, count } = options;
  return [...attemptsAt(task, options), { task, task_index, rollout_index: count, isGreedy: true }];
}

/**
 * Turns the episodes of {@link withGreedyAttempt} into those of the rollouts, each trajectory with the greedy attempt's
 * reward of its role: the mean where several greedy trajectories have the role. A trajectory has none where the greedy
 * attempt failed, is masked by compact filtering, or did not play the role.
 * @throws {ConfigError} for a reward of the greedy attempt that is not finite
 */
export function withBaselines(attempted: readonly Episode[], settings: Naming): Episode[] {
  const baselines = rewardsByRole(attempted.at(-1)!, settings);
  return attempted.slice(0, -1).map((episode) => {
    const roles = new Map(named(episode, settings).trajectories.map(({ uid, name }) => [uid, name]));
    const trajectories = episode.trajectories.map((trajectory) => {
      const reward_baseline = baselines.get(roles.get(trajectory.uid)!);
      return reward_baseline === undefined ? trajectory : { ...trajectory, reward_baseline };
    });
    return { ...episode, trajectories };
  });
}

function rewardsByRole(greedy: Episode, settings: Naming): ReadonlyMap<string, number> {
  if (isMasked(greedy, settings)) return new Map();
  const played = named(greedy, settings).trajectories.filter(({ steps }) => steps.length > 0);
  const rewards = played.map(({ name, reward, steps, uid }) => ({ name, uid, reward: reward ?? steps.at(-1)!.reward }));
  const wrong = rewards.find(({ reward }) => !Number.isFinite(Math.fround(reward)));
  if (wrong)
    throw new ConfigError(
      `Cannot take the greedy trajectory ${wrong.uid} (${wrong.name}) as a baseline: its reward must be a finite number (${wrong.reward}). Correct the reward function; this step trained nothing.`,
      { kind: "code" },
    );
  return new Map(
    Array.from(
      groupBy(rewards, ({ name }) => name),
      ([name, members]) => [name, mean(members.map(({ reward }) => reward))],
    ),
  );
}
