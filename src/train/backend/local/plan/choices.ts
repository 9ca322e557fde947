/**
 * The choices of a plan. With a larger budget none becomes smaller: candidates are fixed, and each needs no less memory
 * than the one before.
 */
import type { Peak } from "../../../../engine/compute/counting.ts";
import { ConfigError } from "../../../../leaves/errors.ts";
import { partBytes, partsOf } from "./parts.ts";
import { type PlanRequest, Rehearsal } from "./rehearsal.ts";
import { batchTokens } from "./run_shape.ts";

/** Longer passes do not run faster. */
const MOST_TOKENS = 8192;
/** A pass of this size keeps a GPU busy: activations are computed again to reach it, not to go beyond it. */
const ENOUGH_TOKENS = 2048;
/** Most sequences that are sampled together. */
const MOST_SLOTS = 256;

export interface PassChoice {
  readonly tokens: number;
  readonly gradientCheckpointing: boolean;
  readonly fits: boolean;
  /** Tokens of a pass that keeps the device busy with this work. */
  readonly enough: number;
}

/** Tokens per pass, and whether to compute activations again; the smallest that there is where nothing fits. */
export async function choosePass(request: PlanRequest): Promise<PassChoice> {
  const { gradientCheckpointing = "auto", maxTokensPerPass } = request.options;
  if (gradientCheckpointing !== "auto") return largestPass(request, gradientCheckpointing);
  const keeps = await largestPass(request, false);
  const enough = Math.min(keeps.enough, maxTokensPerPass ?? MOST_TOKENS);
  if (!request.shape.isTrained || (keeps.fits && keeps.tokens >= enough)) return keeps;
  const recomputes = await largestPass(request, true);
  return keeps.fits && keeps.tokens >= recomputes.tokens ? keeps : recomputes;
}

function enoughTokens({ shape }: PlanRequest, longest: number): number {
  return Math.max(Math.min(ENOUGH_TOKENS, batchTokens(shape, longest)), longest);
}

/** Tokens of a pass of the size that the settings fix; a batch may hold fewer. */
function fixedTokens({ shape, options }: Omit<PlanRequest, "budget">, longest: number): number {
  return Math.max(Math.min(options.maxTokensPerPass ?? 0, batchTokens(shape, longest)), longest);
}

async function largestPass(request: PlanRequest, gradientCheckpointing: boolean): Promise<PassChoice> {
  const { maxTokensPerPass: setTokens } = request.options;
  const options = {
    ...request.options,
    gradientCheckpointing,
    maxTokensPerPass: Math.max(setTokens ?? 0, MOST_TOKENS),
  };
  const rehearsal = await Rehearsal.open({ ...request, options });
  const { longest, held } = rehearsal;
  const isChosen = request.options.gradientCheckpointing !== true;
  const enough = enoughTokens(request, longest);
  const most = gradientCheckpointing && isChosen ? enough : Math.max(MOST_TOKENS, longest);
  const sizes = setTokens === undefined ? passSizes(longest, most) : [fixedTokens(request, longest)];
  const room = roomFor(request, held);
  const work = request.shape.isTrained
    ? (size: number) => rehearsal.train(size)
    : (size: number) => rehearsal.score(size);
  const fits = async (size: number) => held.bytes <= room && (await bytesOr(() => work(size))) <= room;
  const at = await lastFitting(sizes, fits);
  return { tokens: setTokens ?? sizes[Math.max(at, 0)]!, gradientCheckpointing, fits: at >= 0, enough };
}

/** Returns the memory of a phase. Where sampling goes on during training, each has half of what is free. */
function roomFor({ budget, shape }: PlanRequest, held: Peak): number {
  return shape.overlaps ? held.bytes + (budget - held.bytes) / 2 : budget;
}

export interface CacheChoice {
  /** Sequences sampled together when all are the longest. */
  readonly slots: number;
  /** Sequences that may be sampled together when they are shorter. */
  readonly rows: number;
  /** Bytes for the keys and values: what the rest of sampling leaves. */
  readonly cacheBytes: number;
  readonly fits: boolean;
}

/** Sequences that the run samples at a time. */
export function sampledTogether({ shape, options }: PlanRequest): number {
  const { prompts, groupSize, sampled = prompts * groupSize } = shape;
  return Math.max(Math.min(sampled, options.cache?.maxSequences ?? MOST_SLOTS), 1);
}

/** Sequences sampled together, and the memory of their keys and values; one where not even that fits. */
export async function chooseCache(rehearsal: Rehearsal, request: PlanRequest): Promise<CacheChoice> {
  const most = sampledTogether(request);
  const counts = Array.from({ length: most }, (_, i) => i + 1);
  const { held } = rehearsal;
  const room = Math.floor(roomFor(request, held));
  const fits = async (count: number) => held.bytes <= room && (await bytesOr(() => rehearsal.sample(count))) <= room;
  const at = await lastFitting(counts, fits);
  const slots = counts[Math.max(at, 0)]!;
  const peak = await rehearsal.sample(slots);
  // Prompts are mostly shorter than the longest: pages for twice as many sequences, where their activations fit as well.
  const rows = Math.min(2 * slots, most);
  const wider = await rehearsal.sample(rows);
  const isRoomy = room - besidesCache(wider) >= cacheBytes(peak);
  return {
    slots,
    rows: isRoomy ? rows : slots,
    cacheBytes: room - besidesCache(isRoomy ? wider : peak),
    fits: at >= 0,
  };
}

function cacheBytes(peak: Peak): number {
  return partBytes(partsOf(peak), "kv_cache");
}

function besidesCache(peak: Peak): number {
  return peak.bytes - cacheBytes(peak);
}

/** Whether the work fits with one sequence sampled at a time, and with the smallest passes or those that the settings fix. */
export async function fitsAtLeast({ budget, ...request }: PlanRequest): Promise<boolean> {
  const { gradientCheckpointing: recomputes = "auto", foldAdapter: folds = "auto" } = request.options;
  // What the plan chooses where memory is short.
  const gradientCheckpointing = recomputes === "auto" ? true : recomputes;
  const foldAdapter = folds === "auto" ? false : folds;
  const rehearsal = await Rehearsal.open({
    ...request,
    options: { ...request.options, gradientCheckpointing, foldAdapter },
  });
  const { longest, held } = rehearsal;
  const room = roomFor({ ...request, budget }, held);
  const tokens = fixedTokens(request, longest);
  const work = [
    () => (request.shape.isTrained ? rehearsal.train(tokens) : rehearsal.score(tokens)),
    () => rehearsal.sample(1),
  ];
  for (const run of work) if (held.bytes > room || (await bytesOr(run)) > room) return false;
  return true;
}

/** Whole numbers of longest sequences up to `most` tokens, and `most`: what a pass is cut at is what it can hold. */
export function passSizes(longest: number, most: number): number[] {
  const sizes = Array.from({ length: Math.max(Math.floor(most / longest), 1) }, (_, i) => (i + 1) * longest);
  return most > sizes.at(-1)! ? [...sizes, most] : sizes;
}

/** Index of the last candidate that fits, where those that fit come first; -1 where none does. The last is tried first. */
async function lastFitting<T>(candidates: readonly T[], fits: (candidate: T) => Promise<boolean>): Promise<number> {
  if (await fits(candidates.at(-1)!)) return candidates.length - 1;
  if (candidates.length === 1 || !(await fits(candidates[0]!))) return -1;
  let [low, high] = [0, candidates.length - 1];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (await fits(candidates[middle]!)) low = middle;
    else high = middle;
  }
  return low;
}

/** The peak's bytes; infinite for work that no device of these limits can do, such as one buffer that is too large. */
async function bytesOr(work: () => Promise<Peak>): Promise<number> {
  try {
    return (await work()).bytes;
  } catch (error) {
    if (error instanceof ConfigError) return Number.POSITIVE_INFINITY;
    throw error;
  }
}
