/** Keeps episodes on disk until they are trained on. */

import { nodeModule } from "../../leaves/node_module.ts";
import { FolderLock } from "./folder/lock.ts";
import { makeFolders } from "./folder/make_folders.ts";
import { namesIn } from "./folder/owner.ts";

const { readFile, rm, writeFile } = /* @__PURE__ */ nodeModule("node:fs/promises");

const SETTING = "rllm.async_training.episode_offload_dir";

/**
 * Lists of plain values by number, one JSON file each; numbers and bigints that JSON does not have come back as they were. From the
 * first list on the folder is this store's alone, because two runs number their tasks alike.
 */
export class EpisodeStore<T> {
  private readonly dir: string;
  private readonly held = new Set<number>();
  private lock: Promise<FolderLock> | undefined;

  constructor(dir: string) {
    this.dir = dir;
  }

  /** @throws {ConfigError} when another run keeps its episodes there. */
  async put(number: number, episodes: readonly T[]): Promise<void> {
    this.lock ??= this.open();
    await this.lock;
    await writeFile(this.file(number), JSON.stringify(episodes, hideSpecial), { mode: 0o600 });
    this.held.add(number);
  }

  /** Returns and removes what was put. */
  async take(number: number): Promise<T[]> {
    const text = await readFile(this.file(number), "utf8");
    await this.drop(number);
    return JSON.parse(text, showSpecial);
  }

  /** Removes what was not taken, and releases the folder. */
  async clear(): Promise<void> {
    for (const number of this.held) await this.drop(number);
    const lock = await this.lock?.catch(() => undefined);
    await lock?.release();
    this.lock = undefined;
  }

  private async open(): Promise<FolderLock> {
    makeFolders(this.dir, { act: "keep episodes on disk" });
    const advice = `Give each run a folder of its own with ${SETTING}=DIR.`;
    const lock = await FolderLock.take(this.dir, { advice, setting: SETTING });
    // Files of a run that was killed.
    for (const name of await namesIn(this.dir)) if (FILE.test(name)) await rm(`${this.dir}/${name}`, { force: true });
    return lock;
  }

  private async drop(number: number): Promise<void> {
    await rm(this.file(number), { force: true });
    this.held.delete(number);
  }

  private file(number: number): string {
    return `${this.dir}/task_${number}.json`;
  }
}

const FILE = /^task_\d+\.json$/;
const NUMBER = "$number";
const BIGINT = "$bigint";

function hideSpecial(_: string, value: unknown): unknown {
  if (typeof value === "bigint") return { [BIGINT]: String(value) };
  return typeof value === "number" && !Number.isFinite(value) ? { [NUMBER]: String(value) } : value;
}

function showSpecial(_: string, value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (BIGINT in value) return BigInt(String(value[BIGINT]));
  return NUMBER in value ? Number(value[NUMBER]) : value;
}
