/**
 * The published implementations' own figures, recorded in float64: two batches in test/fixtures/math, two larger ones
 * beside the repository (../shared/golden/math) where they are.
 */
import { existsSync, readFileSync } from "node:fs";
import type { LossBatch } from "../../../src/engine/algorithm/loss/host.ts";
import { sharedPath } from "../../fixtures/shared.ts";

const LARGE_BATCHES = ["real_rewards", "wide"];
const hasLarge = existsSync(sharedPath("golden/math/wide.losses.json"));
if (!hasLarge) console.warn(`golden batches ${LARGE_BATCHES.join(", ")} are skipped: no ../shared/golden/math`);

export const BATCHES: readonly string[] = ["pairs", "small", ...(hasLarge ? LARGE_BATCHES : [])];

export interface GoldenRow {
  readonly group: string;
  readonly reward: number;
  readonly mask: number[];
  readonly token_rewards: number[];
  readonly logprobs: number[];
  readonly old_logprobs: number[];
  readonly rollout_logprobs: number[];
  readonly ref_logprobs: number[];
  readonly values: number[];
  readonly entropy: number[];
  readonly sum_pi_squared: number[];
  readonly advantages: number[];
}

function locate(file: string): URL | string {
  const own = new URL(`../../fixtures/math/${file}`, import.meta.url);
  return existsSync(own) ? own : sharedPath(`golden/math/${file}`);
}

export function readGolden<T>(name: string): T {
  return JSON.parse(readFileSync(locate(name), "utf8")) as T;
}

export function readRows(batch: string): GoldenRow[] {
  const text = readFileSync(locate(`${batch}.rollouts.jsonl`), "utf8");
  return text
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as GoldenRow);
}

export function pack(rows: readonly GoldenRow[], field: Exclude<keyof GoldenRow, "group" | "reward">): Float64Array {
  return Float64Array.from(rows.flatMap((row) => row[field]));
}

export function offsetsOf(rows: readonly { mask: number[] }[]): Uint32Array {
  const offsets = new Uint32Array(rows.length + 1);
  for (const [i, { mask }] of rows.entries()) offsets[i + 1] = offsets[i]! + mask.length;
  return offsets;
}

/** The batch as the losses take it. `level`: the recorded importance weights, min(exp(old - rollout), 2) at mask = 1. */
export function lossBatch(rows: readonly GoldenRow[], weighted: boolean): LossBatch {
  const [mask, oldLogprobs, rollout] = [pack(rows, "mask"), pack(rows, "old_logprobs"), pack(rows, "rollout_logprobs")];
  return {
    offsets: offsetsOf(rows),
    mask: Uint32Array.from(mask),
    logprobs: pack(rows, "logprobs"),
    oldLogprobs,
    advantages: { level: "token", values: pack(rows, "advantages") },
    rolloutIsWeights: weighted
      ? oldLogprobs.map((old, t) => (mask[t] === 0 ? 0 : Math.min(Math.exp(old - rollout[t]!), 2)))
      : undefined,
    refLogprobs: pack(rows, "ref_logprobs"),
  };
}

/** Largest |a - b| - (absolute + relative |b|) over the pairs, as a readable failure. */
export function furthest(
  got: ArrayLike<number>,
  want: ArrayLike<number>,
  tolerance: { relative: number; absolute: number },
): { index: number; got: number; want: number } | undefined {
  if (got.length !== want.length) return { index: -1, got: got.length, want: want.length };
  for (let i = 0; i < want.length; i++) {
    const allowed = tolerance.absolute + tolerance.relative * Math.abs(want[i]!);
    if (!(Math.abs(got[i]! - want[i]!) <= allowed)) return { index: i, got: got[i]!, want: want[i]! };
  }
  return undefined;
}

export const F64 = { relative: 1e-9, absolute: 1e-14 };
export const F32 = { relative: 2e-5, absolute: 2e-6 };
