/** The order of test files: the first that fails ends a mutant's run, so those that notice it soonest come first. */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import { ROOT } from "./folders.ts";

/** Longest run of each test file so far, ms: later runs are of some of its tests, or end at the first failure. */
const longest = new Map<string, number>();

/** Puts the tests nearest to the mutated file first, and quick ones before slow ones that are as near. */
export class NearestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const [mutated] = this.ctx.config.related ?? [];
    if (mutated === undefined) return files;
    const source = relative(ROOT, mutated);
    const worth = new Map(files.map((file) => [file, worthOf(file.moduleId, source, this.secondsOf(file))]));
    return files.toSorted((a, b) => worth.get(b)! - worth.get(a)!);
  }

  private secondsOf({ project, moduleId }: TestSpecification): number {
    const key = `${project.name}:${relative(this.ctx.config.root, moduleId)}`;
    const { duration = 0 } = this.ctx.cache.getFileTestResults(key) ?? {};
    longest.set(key, Math.max(longest.get(key) ?? 0, duration));
    return longest.get(key)! / 1000;
  }
}

/** How soon a test may notice a mistake in the source: each part that their paths share is worth twice the time. */
export function worthOf(test: string, source: string, seconds: number): number {
  return nearness(test, source) - Math.log2(1 + seconds);
}

/** Parts of the path that a test shares with a source: its folders, and words of its name. */
export function nearness(test: string, source: string): number {
  const near = new Set(partsOf(source));
  return partsOf(relative(ROOT, test)).filter((part) => near.has(part)).length;
}

function partsOf(path: string): string[] {
  const [, ...parts] = path.replace(/(_test)?\.ts$/, "").split(/[/_]/);
  return [...new Set(parts)];
}
