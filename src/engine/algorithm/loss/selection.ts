/** Chooses tokens by the covariance of their log-prob and advantage (clip_cov, kl_cov). */

import { sum } from "../../../leaves/statistics.ts";
import { trainedIn } from "../../packing/offsets.ts";
import { COUNT_EPSILON } from "../rows.ts";
import type { Selection } from "./definition.ts";
import type { Streams } from "./pass.ts";
import { clamp } from "./token.ts";

/** A well-mixed u32 of a token index and a seed, by PCG's output function: candidates are drawn in its order. */
export function hashToken(t: number, seed: number): number {
  const state = (Math.imul(t ^ Math.imul(seed, 0x9e3779b9), 747796405) + 2891336453) >>> 0;
  const word = Math.imul(((state >>> ((state >>> 28) + 4)) ^ state) >>> 0, 277803737) >>> 0;
  return ((word >>> 22) ^ word) >>> 0;
}

/** How many of the trained tokens a selection takes. */
export function selectedCount({ ratio }: Selection, trained: number): number {
  return Math.max(Math.floor(ratio * trained), 1);
}

/** The test of whether a token is selected. */
export function selectTokens(selection: Selection, s: Streams, tokens: number): (t: number) => boolean {
  const trained = trainedIn(s.mask, 0, tokens);
  const order = selection.kind === "largest" ? largestFirst(s, trained) : randomOrder(s, trained, selection);
  const chosen = new Set(order.slice(0, selectedCount(selection, trained.length)));
  return (t) => chosen.has(t);
}

/** Orders by covariance; the first of equal ones first. */
function largestFirst(s: Streams, trained: readonly number[]): number[] {
  const covariance = covariances(s, trained, 0);
  return [...trained].sort((t, u) => covariance(u) - covariance(t) || t - u);
}

/** The candidates by their hash. */
function randomOrder(s: Streams, trained: readonly number[], selection: Selection): number[] {
  const covariance = covariances(s, trained, COUNT_EPSILON);
  const { lower, upper, seed } = selection;
  const isCandidate = (t: number) => covariance(t) > lower && covariance(t) < upper && !isClipped(t, s, selection);
  return trained.filter(isCandidate).sort((t, u) => hashToken(u, seed) - hashToken(t, seed));
}

/**
 * (A - mean A) (logprob - mean logprob) of a trained token.
 * @param epsilon added to the count of the means
 */
function covariances(s: Streams, trained: readonly number[], epsilon: number): (t: number) => number {
  const advantage = (t: number) => s.advantage(t, s.row(t));
  const logprob = (t: number) => s.logprobs[t]!;
  const mean = (of: (t: number) => number) => sum(trained.map(of)) / (trained.length + epsilon);
  const [meanAdvantage, meanLogprob] = [mean(advantage), mean(logprob)];
  const covariance = new Float64Array((trained.at(-1) ?? 0) + 1);
  for (const t of trained) covariance[t] = (advantage(t) - meanAdvantage) * (logprob(t) - meanLogprob);
  return (t) => covariance[t]!;
}

/** clip_cov leaves out tokens whose clipped objective is already the worse one. */
function isClipped(t: number, s: Streams, { low, high }: Selection): boolean {
  const r = s.old ? Math.exp(s.logprobs[t]! - s.old[t]!) : 1;
  const advantage = s.advantage(t, s.row(t));
  return -advantage * clamp(r, low, high) > -advantage * r;
}
