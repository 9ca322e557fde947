/** The order of test files: the first that fails ends a mutant's run, so those that most likely notice it come first. */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import { ROOT } from "./folders.ts";

/** Puts the tests nearest to the mutated file first. Mutants of tables and constants run every test that imports them. */
export class NearestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const [mutated] = this.ctx.config.related ?? [];
    if (mutated === undefined) return files;
    const source = relative(ROOT, mutated);
    return files.toSorted((a, b) => nearness(b.moduleId, source) - nearness(a.moduleId, source));
  }
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
