/** Seeded choice of a part of many things, the same on every machine. */
import { createHash } from "node:crypto";

export interface Part {
  /** In (0, 1]. */
  readonly part: number;
  readonly seed: number;
}

/** True for about `part` of all names. */
export function isChosen(name: string, { part, seed }: Part): boolean {
  if (part >= 1) return true;
  const hash = createHash("sha256").update(`${seed}:${name}`).digest();
  return hash.readUInt32LE(0) / 2 ** 32 < part;
}
