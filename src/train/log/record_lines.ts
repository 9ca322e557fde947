/** Lines of a record for people: sample replies, and the rewards of every group. For the run's files and for pages. */
import type { Episode } from "../data/types.ts";
import type { LogRecord } from "./logger.ts";
import type { GroupsLine, SampleLine } from "./run_files.ts";

/** Validation attempts kept per validation. */
const SAMPLES = 16;

/** The first attempts of a validation, always at the same tasks: what changed between before and after. */
export function sampleLines({ phase, step, episodes }: LogRecord): readonly SampleLine[] {
  if (phase !== "val" || !episodes) return [];
  return episodes
    .filter((episode) => episode.rollout_index === 0)
    .slice(0, SAMPLES)
    .map((episode) => toSample(episode, step));
}

/** Rewards and solve counts of every group of a training step, before anything is filtered; nothing of other records. */
export function groupsLine({ phase, step, episodes }: LogRecord): GroupsLine | undefined {
  if (phase !== "train" || !episodes || episodes.length === 0) return undefined;
  const groups = new Map<string, { task: string; name: string; rewards: (number | null)[]; solved: number }>();
  for (const { task, task_index, trajectories, is_correct } of episodes) {
    for (const { name, reward, steps } of trajectories) {
      const key = `${task_index}:${name}`;
      const group = groups.get(key) ?? { task: task.id, name, rewards: [], solved: 0 };
      groups.set(key, group);
      const value = reward ?? steps.at(-1)?.reward ?? null;
      group.rewards.push(value === null ? null : Number(value.toPrecision(4)));
      group.solved += Number(is_correct);
    }
  }
  return { step, groups: [...groups.values()] };
}

function toSample({ task, trajectories, is_correct }: Episode, step: number): SampleLine {
  const steps = trajectories.flatMap((trajectory) => trajectory.steps);
  const rewards = trajectories.map((trajectory) => trajectory.reward ?? trajectory.steps.at(-1)?.reward ?? 0);
  return {
    step,
    task: task.id,
    prompt: task.instruction,
    response: steps.map((each) => each.model_response).join("\n"),
    reward: rewards.length > 0 ? rewards.reduce((sum, reward) => sum + reward) : null,
    is_correct,
  };
}
