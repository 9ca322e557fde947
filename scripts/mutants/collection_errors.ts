/** Makes an error while a test file is collected an error of the run. */
import type { Reporter, TestModule, Vitest } from "vitest/node";

/**
 * Stryker looks at tests alone. A file whose module or `describe` body throws has none, so without this reporter its
 * mutants pass for survivors, and a file that is broken without any mutant goes unseen.
 */
export class CollectionErrors implements Reporter {
  #vitest: Vitest | undefined;

  onInit(vitest: Vitest): void {
    this.#vitest = vitest;
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    for (const module of modules)
      for (const error of module.errors()) this.#vitest?.state.catchError(error, "Unhandled Error");
  }
}
