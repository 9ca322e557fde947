/** Chooses tokens by the covariance of their log-prob and advantage (clip_cov, kl_cov). */
import type { Selection } from "./definition.ts";
import { clamp } from "./definition.ts";
import type { Streams } from "./pass.ts";

/** A well-mixed u32 of a token index and a seed: the order in which candidates are drawn. PCG's output function. */
export function hashToken(t: number, seed: number): number {
  const state = (Math.imul(t ^ Math.imul(seed, 0x9e3779b9), 747796405) + 2891336453) >>> 0;
  const word = Math.imul(((state >>> ((state >>> 28) + 4)) ^ state) >>> 0, 277803737) >>> 0;
  return ((word >>> 22) ^ word) >>> 0;
}

/** Tells whether a token is selected. Without a selection, none is. */
export function selectTokens(
  selection: Selection | undefined,
  s: Streams,
  tokens: number,
): (t: number) => boolean {
  if (!selection) return () => false;
  const trained: number[] = [];
  for (let t = 0; t < tokens; t++) if (s.mask[t] !== 0) trained.push(t);
  const covariance = covariances(s, trained, selection.kind === "largest" ? 0 : 1e-8);
  const wanted = Math.max(Math.floor(selection.ratio * trained.length), 1);
  if (selection.kind === "largest") {
    const order = trained.map((_, i) => i).sort((i, j) => covariance[j]! - covariance[i]! || i - j);
    const chosen = new Set(order.slice(0, wanted).map((i) => trained[i]));
    return (t) => chosen.has(t);
  }
  const candidates = trained.filter(
    (t, i) =>
      covariance[i]! > selection.lower && covariance[i]! < selection.upper && !isClipped(t, s, selection),
  );
  candidates.sort((t, u) => hashToken(u, selection.seed) - hashToken(t, selection.seed));
  const chosen = new Set(candidates.slice(0, wanted));
  return (t) => chosen.has(t);
}

/** Products of the distances from the means, of trained tokens. `epsilon` is added to the count, as in masked means. */
function covariances(s: Streams, trained: readonly number[], epsilon: number): Float64Array {
  const advantage = (t: number) => s.advantage(t, s.row(t));
  const mean = (f: (t: number) => number) =>
    trained.reduce((sum, t) => sum + f(t), 0) / (trained.length + epsilon);
  const meanAdvantage = mean(advantage);
  const meanLogprob = mean((t) => s.logprobs[t]!);
  return Float64Array.from(trained, (t) => (advantage(t) - meanAdvantage) * (s.logprobs[t]! - meanLogprob));
}

/** clip_cov leaves out tokens whose clipped objective is already the worse one. */
function isClipped(t: number, s: Streams, { low, high }: Selection): boolean {
  const r = s.old ? Math.exp(s.logprobs[t]! - s.old[t]!) : 1;
  const advantage = s.advantage(t, s.row(t));
  return -advantage * clamp(r, low, high) > -advantage * r;
}
