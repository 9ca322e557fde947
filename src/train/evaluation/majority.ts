/** maj@k: whether the most frequent of k answers is correct. */
import type { EqualAnswers } from "../data/types.ts";

/** An attempt's answer. */
export interface Vote {
  /** Equal answers are equal texts ({@link groupVotes}); undefined where the attempt gave none. */
  readonly answer: string | undefined;
  readonly is_correct: boolean;
}

/**
 * The share of correct majorities over the floor(n / k) disjoint blocks of k attempts, in order: each block is an independent draw,
 * so that the estimate is unbiased. Attempts without an answer do not vote; of answers with equally many votes each counts the same
 * share; a block without any answer is wrong.
 * @see Wang et al. 2022, https://arxiv.org/abs/2203.11171 (self-consistency)
 */
export function majorityAtK(k: number, votes: readonly Vote[]): number {
  const size = Math.min(k, votes.length);
  if (size === 0) return 0;
  const blocks = Math.floor(votes.length / size);
  let right = 0;
  for (let i = 0; i < blocks; i++) right += majority(votes.slice(i * size, (i + 1) * size));
  return right / blocks;
}

/** Votes of which equal answers have one text, that of the first. */
export function groupVotes(votes: readonly Vote[], equal: EqualAnswers): Vote[] {
  const canonical = new Map<string, string>();
  const forms: string[] = [];
  const formOf = (answer: string): string => {
    const form = canonical.get(answer) ?? forms.find((each) => equal(answer, each)) ?? answer;
    if (form === answer && !canonical.has(answer)) forms.push(answer);
    canonical.set(answer, form);
    return form;
  };
  return votes.map((vote) => (vote.answer === undefined ? vote : { ...vote, answer: formOf(vote.answer) }));
}

/** The share of correct ones among the most frequent answers. */
function majority(votes: readonly Vote[]): number {
  const counts = new Map<string, { count: number; right: number }>();
  for (const { answer, is_correct } of votes) {
    if (answer === undefined) continue;
    const entry = counts.get(answer) ?? { count: 0, right: 0 };
    counts.set(answer, { count: entry.count + 1, right: entry.right + Number(is_correct) });
  }
  const most = Math.max(0, ...Array.from(counts.values(), ({ count }) => count));
  const winners = [...counts.values()].filter(({ count }) => count === most);
  return winners.length === 0 ? 0 : winners.reduce((sum, { count, right }) => sum + right / count, 0) / winners.length;
}
