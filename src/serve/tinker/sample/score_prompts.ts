/** The log-probs of prompts, for the jobs of a batch that want them. */
import type { PromptScores } from "../../../engine/contract/engine.ts";
import { DeviceLostError } from "../../../leaves/errors.ts";
import type { Batch, SampleJob } from "./batch.ts";
import type { OpenPolicies } from "./open_policies.ts";

/** Prompt tokens that are scored for the jobs. */
export function scoredTokens(batch: readonly SampleJob[]): number {
  return batch.reduce((sum, { scores, prompt }) => sum + (scores ? prompt.length : 0), 0);
}

/** Scores prompts of which the same is wanted together. A prompt that cannot be scored fails its own job. */
export async function scorePrompts(policies: OpenPolicies, batch: Batch): Promise<Map<SampleJob, PromptScores>> {
  const results = new Map<SampleJob, PromptScores>();
  for (const jobs of groupByScores(batch.jobs)) {
    const [{ scores: scoring, policy: source }] = jobs as [SampleJob];
    const { own: scoresPrompt, topk } = scoring!;
    const policy = policies.of(source);
    const score = async (some: readonly SampleJob[]) => {
      const prompts = some.map(({ prompt }) => prompt);
      const targets = some.map(({ scores }) => scores?.targets);
      const draws = some.map(({ scores }) => scores?.draws);
      const scores = await policy.scorePrompts(prompts, { own: scoresPrompt, topk, targets, draws });
      for (const [i, job] of some.entries()) results.set(job, scores[i]!);
    };
    try {
      await score(jobs);
    } catch (error) {
      if (error instanceof DeviceLostError || batch.jobs.length === 1) throw error;
      // Which prompt it was shows when each is scored alone.
      for (const job of jobs) await score([job]).catch((error: unknown) => batch.refuse(job, error));
    }
  }
  return results;
}

function groupByScores(batch: readonly SampleJob[]): Iterable<readonly SampleJob[]> {
  const policies = [...new Set(batch.map(({ policy }) => policy))];
  const groups = new Map<string, SampleJob[]>();
  for (const job of batch) {
    if (!job.scores) continue;
    const { own: scoresPrompt = true, topk } = job.scores;
    const key = `${policies.indexOf(job.policy)} ${topk} ${scoresPrompt}`;
    groups.set(key, [...(groups.get(key) ?? []), job]);
  }
  return groups.values();
}
