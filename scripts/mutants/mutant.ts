/** One mistake made on purpose, and whether the tests noticed it. */
import type { Part } from "./sample.ts";

export interface Mutant {
  /** Relative to the repository. */
  readonly file: string;
  readonly line: number;
  /** Kind of mistake: Stryker's names for TypeScript, ours for WGSL. */
  readonly mutator: string;
  readonly from: string;
  readonly to: string;
  /** In Stryker's words: `Killed`, `Survived`, `NoCoverage`, `Timeout`, `CompileError`, `RuntimeError`, `Ignored`. */
  readonly status: string;
}

/** What to mutate: a target, or some lines of it (`src/a.ts:3-9`). */
export interface Plan {
  /** A folder or file of src/ (`loop`, `model/files/jinja`), `root` for the files directly in src/, or `shaders`. */
  readonly folder: string;
  readonly lines?: readonly string[] | undefined;
}

export interface Chosen extends Plan, Part {
  /** Processes that judge mutants of TypeScript at once; shaders are judged one after the other. */
  readonly concurrency: number;
  /** Leave out mutants of TypeScript that act at import. */
  readonly withoutStatic: boolean;
}
