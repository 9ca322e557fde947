/** The phases of a run on the clock, for a profile. */
import type { Run } from "./contract.ts";

/** Does the work and tells how long it took, also where it fails. */
export async function inPhase<T>({ onPhase }: Pick<Run, "onPhase">, name: string, work: () => Promise<T>): Promise<T> {
  const start = performance.now();
  try {
    return await work();
  } finally {
    onPhase?.({ name, start, end: performance.now() });
  }
}
