/**
 * Every episode as a JSON file, in rLLM's folder form: `episodes/<mode>_step_<n>_epoch_<e>/episode_hash<h>_id<id>.json`
 * and a `batch_summary.json` in the same folder. Token ids are left out.
 */
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { stringifyJson } from "../../../leaves/json.ts";
import type { Episode, Step, Trajectory } from "../../data/types.ts";
import { makeFolders } from "../folder/make_folders.ts";
import type { Logger, LogRecord } from "../logger.ts";

/** Writes every episode as a JSON file, in rLLM's folder layout. */
export class EpisodeFiles implements Logger {
  private readonly dir: string;

  constructor(dir: string) {
    this.dir = join(dir, "episodes");
  }

  log({ phase, step, metrics, episodes }: LogRecord): void {
    if (!episodes) return;
    const epoch = metrics["training/epoch"] ?? 0;
    const folder = join(this.dir, `${phase}_step_${step}_epoch_${epoch}`);
    // A resumed run repeats the steps after its checkpoint.
    rmSync(folder, { recursive: true, force: true });
    makeFolders(folder, { act: "log the episodes" });
    const names = episodes.map((episode) => {
      const name = fileName(episode);
      write(join(folder, name), episodeFile(episode, { step, epoch }));
      return name;
    });
    write(join(folder, "batch_summary.json"), batchSummary(episodes, { step, epoch, mode: phase, names }));
  }
}

function write(file: string, content: object): void {
  writeFileSync(file, `${stringifyJson(content, 2)}\n`, { mode: 0o600 });
}

function bigintAsText(_: string, value: unknown): unknown {
  return typeof value === "bigint" ? String(value) : value;
}

/** First characters of the hash of the task, whose keys are sorted. */
function taskHash({ task }: Episode): string {
  const text = JSON.stringify(sorted({ ...task.metadata, id: task.id, instruction: task.instruction }), bigintAsText);
  return createHash("sha256").update(text).digest("hex").slice(0, 8);
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
}

/** The task's place in the batch keeps apart tasks that share an id. */
function fileName(episode: Episode): string {
  const id = `${episode.id}_${episode.task_index}`.replace(/[:/\\]/g, "_");
  return `episode_hash${taskHash(episode)}_id${id}.json`;
}

function episodeFile(episode: Episode, at: { step: number; epoch: number }) {
  const { id, task, is_correct, termination_reason, metrics, metadata, trajectories } = episode;
  return {
    training_step: at.step,
    epoch: at.epoch,
    episode_id: id,
    task: { id: task.id, instruction: task.instruction, metadata: task.metadata },
    task_hash: taskHash(episode),
    is_correct,
    termination_reason,
    metrics,
    metadata,
    trajectories: trajectories.map(trajectoryEntry),
  };
}

function trajectoryEntry({ name, uid, reward, steps }: Trajectory) {
  return { name, uid, reward, num_steps: steps.length, steps: steps.map(stepEntry) };
}

function stepEntry({ prompt, chat_completions, model_response, observation, action, reward, done }: Step) {
  return {
    observation: observation ?? prompt ?? null,
    action: action ?? null,
    reward,
    done,
    model_response,
    ...(chat_completions && { chat_completions }),
  };
}

interface SummaryOf {
  readonly step: number;
  readonly epoch: number;
  readonly mode: string;
  readonly names: readonly string[];
}

function batchSummary(episodes: readonly Episode[], { step, epoch, mode, names }: SummaryOf) {
  const total_correct = episodes.filter((episode) => episode.is_correct).length;
  const count = Math.max(episodes.length, 1);
  return {
    training_step: step,
    epoch,
    mode,
    num_episodes: episodes.length,
    episode_files: names,
    summary_stats: {
      total_correct,
      total_incorrect: episodes.length - total_correct,
      accuracy: total_correct / count,
      avg_trajectories_per_episode: episodes.reduce((sum, episode) => sum + episode.trajectories.length, 0) / count,
    },
  };
}
