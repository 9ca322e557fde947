/** Tasks of asynchronous generation, from their first attempt until a step trains on them. */
import type { Episode } from "../../data/types.ts";
import { EpisodeStore } from "../../log/episode_store.ts";

/** One task and its episodes so far. */
export interface EpisodeGroup {
  /** Number of the task, counted over all batches. */
  readonly number: number;
  /** Number of the synchronisation before it started. */
  readonly version: number;
  episodes: Episode[];
  unfinished: number;
}

type FinishGroup = (episodes: readonly Episode[]) => Episode[];

export class GroupBuffer {
  private readonly finish: FinishGroup;
  private readonly store: EpisodeStore<Episode> | undefined;
  private readonly started = new Map<number, EpisodeGroup>();
  /** Groups among the started ones that have finished, in that order. */
  private readonly done: EpisodeGroup[] = [];
  /** Groups taken in the whole run. */
  consumed = 0;

  /**
   * @param dir keeps finished episodes on disk; null: in memory
   * @param finish what is kept of a task's episodes when the last attempt has ended. Default: all
   */
  constructor(dir: string | null, { finish = (episodes) => [...episodes] }: { finish?: FinishGroup } = {}) {
    this.store = dir === null ? undefined : new EpisodeStore(dir);
    this.finish = finish;
  }

  get numbers(): number[] {
    return [...this.started.keys()];
  }
  get finished(): number {
    return this.done.length;
  }
  get unfinished(): number {
    return this.started.size - this.done.length;
  }

  start(number: number, { version, attempts }: { version: number; attempts: number }): EpisodeGroup {
    const group: EpisodeGroup = { number, version, episodes: [], unfinished: attempts };
    this.started.set(number, group);
    return group;
  }

  /** Adds the episode of an attempt; the last attempt finishes the group. */
  async add(group: EpisodeGroup, rollout_index: number, episode: Episode): Promise<void> {
    group.episodes[rollout_index] = episode;
    if (--group.unfinished > 0) return;
    group.episodes = this.finish(group.episodes);
    if (this.store) {
      await this.store.put(group.number, group.episodes);
      group.episodes = [];
    }
    this.done.push(group);
  }

  /** Removes the `count` groups that finished first, sorted by number. Task indexes are places in the batch. */
  async take(count: number): Promise<{ groups: readonly EpisodeGroup[]; episodes: Episode[] }> {
    const groups = this.done.splice(0, count).sort((a, b) => a.number - b.number);
    for (const { number } of groups) this.started.delete(number);
    this.consumed += groups.length;
    const batch = await Promise.all(
      groups.map(async ({ number, episodes }, task_index) => {
        const kept = this.store ? await this.store.take(number) : episodes;
        return kept.map((episode) => ({ ...episode, task_index }));
      }),
    );
    return { groups, episodes: batch.flat() };
  }

  async clear(): Promise<void> {
    await this.store?.clear();
  }
}
