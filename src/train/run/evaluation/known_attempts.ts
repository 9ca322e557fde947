/** The attempts of an evaluation on disk: one line each, appended when the attempt ends. */

import { createHash } from "node:crypto";
import { appendFileSync, existsSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileError } from "../../../leaves/errors.ts";
import { parseJson, stringifyJson } from "../../../leaves/json.ts";
import type { Episode, Step, Task } from "../../data/types.ts";
import type { AttemptStore } from "../../evaluation/remembered.ts";
import { FolderLock } from "../../log/folder/lock.ts";
import { makeFolders } from "../../log/folder/make_folders.ts";
import type { Attempt } from "../../loop/rollout/attempts_per_task.ts";

/** One line: an episode without its task and its tokens. */
interface Line extends Omit<Episode, "task"> {
  /** SHA-256 of the task: its prompt and its whole row. */
  readonly task: string;
}

const ATTEMPTS_FILE = "attempts.jsonl";
const ABOUT_FILE = "about.json";

/** A folder with the attempts of one model under one key. It is locked from `open` to `close`. */
export class KnownAttempts implements AttemptStore {
  private readonly file: string;
  private readonly lock: FolderLock;
  private readonly lines = new Map<string, Line>();
  private readonly hashes = new Map<Task, string>();

  private constructor(lock: FolderLock) {
    this.lock = lock;
    this.file = join(lock.folder, ATTEMPTS_FILE);
  }

  /** @throws {ConfigError} when another process evaluates the same, or the folder cannot be written. */
  static async open(folder: string, about: object): Promise<KnownAttempts> {
    makeFolders(dirname(folder), { act: "keep the attempts" });
    const advice = "Wait until it has ended, or give --cache another folder.";
    const store = new KnownAttempts(await FolderLock.take(folder, { advice }));
    store.read();
    store.writing(() => writeFileSync(join(folder, ABOUT_FILE), `${JSON.stringify(about, null, 2)}\n`));
    return store;
  }

  get size(): number {
    return this.lines.size;
  }

  find(attempt: Attempt): Episode | undefined {
    const line = this.lines.get(this.keyOf(attempt));
    return line && { ...line, task: attempt.task, task_index: attempt.task_index };
  }

  /** Failed attempts are made again by the next evaluation, and a reward that is no number is an error there. */
  add(episode: Episode): void {
    const rewards = episode.trajectories.flatMap(({ reward, steps }) => [
      reward ?? 0,
      ...steps.map((each) => each.reward),
    ]);
    if (episode.termination_reason === "error" || !rewards.every(Number.isFinite)) return;
    const line: Line = { ...slim(episode), task: this.hashOf(episode.task) };
    this.writing(() => appendFileSync(this.file, `${stringifyJson(line)}\n`));
    this.lines.set(this.keyOf(episode), line);
  }

  close(): Promise<void> {
    return this.lock.release();
  }

  /** A line that a crash cut short is removed. */
  private read(): void {
    if (!existsSync(this.file)) return;
    const bytes = readFileSync(this.file);
    const end = bytes.lastIndexOf(10) + 1;
    if (end < bytes.length) truncateSync(this.file, end);
    for (const text of bytes.subarray(0, end).toString("utf8").split("\n")) {
      const line = parsed(text);
      if (line) this.lines.set(place(line.task, line), line);
    }
  }

  private keyOf(attempt: Attempt): string {
    return place(this.hashOf(attempt.task), attempt);
  }

  private hashOf(task: Task): string {
    const hash = this.hashes.get(task) ?? createHash("sha256").update(stringifyJson(task)).digest("hex");
    this.hashes.set(task, hash);
    return hash;
  }

  private writing(write: () => void): void {
    try {
      write();
    } catch (cause) {
      throw fileError(cause, { act: "keep the attempts", file: this.lock.folder }) ?? cause;
    }
  }
}

/** The index is part of it, because an attempt's random numbers follow from it. */
function place(task: string, { task_index, rollout_index }: Pick<Episode, "task_index" | "rollout_index">): string {
  return `${task} ${task_index} ${rollout_index}`;
}

/** A damaged line is an attempt that is not known. */
function parsed(text: string): Line | undefined {
  try {
    const line = parseJson(text) as Line;
    return Array.isArray(line.trajectories) && typeof line.task === "string" ? line : undefined;
  } catch {
    return undefined;
  }
}

function slim({ task: _, ...episode }: Episode): Omit<Episode, "task"> {
  const bare = ({ model_response, reward, done }: Step): Step => ({
    prompt_ids: [],
    response_ids: [],
    logprobs: [],
    model_response,
    reward,
    done,
  });
  return {
    ...episode,
    trajectories: episode.trajectories.map((each) => ({ ...each, steps: each.steps.map(bare) })),
  };
}
