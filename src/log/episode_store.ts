/** Episodes that wait on disk until they are trained on. */
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";

/** Lists of plain values by number, one JSON file each; numbers that JSON does not have come back as they were. */
export class EpisodeStore<T> {
  private readonly dir: string;
  private readonly held = new Set<number>();

  constructor(dir: string) {
    this.dir = dir;
  }

  async put(number: number, episodes: readonly T[]): Promise<void> {
    await mkdir(this.dir, { recursive: true });
    await writeFile(this.file(number), JSON.stringify(episodes, hideSpecial));
    this.held.add(number);
  }

  /** What was put, which is then no longer there. */
  async take(number: number): Promise<T[]> {
    const text = await readFile(this.file(number), "utf8");
    await this.drop(number);
    return JSON.parse(text, showSpecial);
  }

  /** Removes what nobody took. */
  async clear(): Promise<void> {
    for (const number of this.held) await this.drop(number);
  }

  private async drop(number: number): Promise<void> {
    await rm(this.file(number), { force: true });
    this.held.delete(number);
  }

  private file(number: number): string {
    return `${this.dir}/task_${number}.json`;
  }
}

const NUMBER = "$number";

function hideSpecial(_: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isFinite(value) ? { [NUMBER]: String(value) } : value;
}

function showSpecial(_: string, value: unknown): unknown {
  const isHidden = typeof value === "object" && value !== null && NUMBER in value;
  return isHidden ? Number((value as Record<string, unknown>)[NUMBER]) : value;
}
