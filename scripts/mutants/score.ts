/** How many of the mutants the tests noticed. */
import type { Mutant } from "./mutant.ts";
import { isEquivalent } from "./survivors.ts";

export interface Score {
  /** Mutants that count: not those that were left out, nor those that do not compile. */
  readonly total: number;
  readonly noticed: number;
  /** Of the noticed, those that no test can notice. */
  readonly equivalent: number;
  /** In percent; 100 where nothing counts. */
  readonly percent: number;
  readonly survivors: readonly Mutant[];
}

/** A mutant that hangs or breaks the tests' collection is noticed like one that fails a test. */
export function scoreOf(mutants: readonly Mutant[]): Score {
  const counted = mutants.filter(({ status }) => status !== "Ignored" && status !== "CompileError");
  const missed = counted.filter(({ status }) => status === "Survived" || status === "NoCoverage");
  const survivors = missed.filter((mutant) => !isEquivalent(mutant));
  const noticed = counted.length - survivors.length;
  return {
    total: counted.length,
    noticed,
    equivalent: missed.length - survivors.length,
    percent: counted.length === 0 ? 100 : (100 * noticed) / counted.length,
    survivors,
  };
}
