/** Metrics and sample rollouts as files of one JSON object a line. */
import { join } from "node:path";
import type { Episode } from "../../data/types.ts";
import type { Logger, LogRecord } from "../logger.ts";
import { GROUPS_FILE, type GroupsLine, METRICS_FILE, SAMPLES_FILE, type SampleLine } from "../run_files.ts";
import { AppendedFile } from "./appended_file.ts";

/**
 * The loggers that write a run's metrics, samples and groups as JSONL into its folder. `grpu view` and `grpu report`
 * read them.
 * @example
 *     await train({ ...run, loggers: [...jsonlFiles("runs/sums")] });
 */
export function jsonlFiles(dir: string): readonly Logger[] {
  return [
    new MetricsFile(join(dir, METRICS_FILE)),
    new SamplesFile(join(dir, SAMPLES_FILE)),
    new GroupsFile(join(dir, GROUPS_FILE)),
  ];
}

/** Appends lines. What a resumed run repeats is cut off first, so that no line ever comes twice. */
abstract class LinesFile extends AppendedFile {
  protected abstract lines(record: LogRecord): readonly unknown[];

  protected encode(record: LogRecord): string {
    return this.lines(record)
      .map((line) => `${JSON.stringify(line)}\n`)
      .join("");
  }
}

/** Every step's metrics. The same seed gives the same lines, but for names under `time/` and `perf/`. */
export class MetricsFile extends LinesFile {
  protected lines({ phase, step, metrics }: LogRecord): readonly unknown[] {
    return [{ phase, step, ...metrics }];
  }
}

/** Validation attempts kept per validation. */
const SAMPLES = 16;

/** The first attempts of every validation, always at the same tasks: what changed between before and after. */
export class SamplesFile extends LinesFile {
  protected lines({ phase, step, episodes }: LogRecord): readonly SampleLine[] {
    if (phase !== "val" || !episodes) return [];
    return episodes
      .filter((episode) => episode.rollout_index === 0)
      .slice(0, SAMPLES)
      .map((episode) => toSample(episode, step));
  }
}

/** Rewards and solve counts of every group of every training step, before anything is filtered. */
export class GroupsFile extends LinesFile {
  protected lines({ phase, step, episodes }: LogRecord): readonly GroupsLine[] {
    if (phase !== "train" || !episodes || episodes.length === 0) return [];
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
    return [{ step, groups: [...groups.values()] }];
  }
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
