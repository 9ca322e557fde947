/** Seeded choices, so that a failure repeats. */
import { uniform } from "../../fixtures/numbers.ts";

export function randomOf(seed: number) {
  const next = uniform(seed);
  const below = (n: number) => Math.floor(next() * n);
  return { next, below, pick: <T>(items: readonly T[]): T => items[below(items.length)]! };
}

export type Random = ReturnType<typeof randomOf>;
