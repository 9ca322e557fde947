/** Measures of an evaluation for each task: the mean reward, pass@k, maj@k. */

import { mean } from "../../leaves/statistics.ts";
import type { Episode, EqualAnswers } from "../data/types.ts";
import { groupBy } from "../loop/group_by.ts";
import { dataSource, passAtK } from "../loop/validate.ts";
import { groupVotes, majorityAtK } from "./majority.ts";

/** One task with the values of its attempts. */
export interface MeasuredTask {
  readonly id: string;
  /** Place among the tasks of the evaluation: ids may repeat. */
  readonly index: number;
  readonly source: string;
  readonly attempts: number;
  readonly correct: number;
  /** Values by name: `reward`, `pass@1`, `pass@4`, `maj@4`, ... */
  readonly values: Readonly<Record<string, number>>;
}

/** Fewer votes have no majority that differs from a single attempt. */
const LEAST_VOTES = 3;

export interface Measures {
  /** The sizes of pass@k and maj@k. */
  readonly ks: readonly number[];
  /** Whether two answers are one vote. */
  readonly equal: EqualAnswers;
}

/** The tasks of these episodes, in their order. */
export function measureTasks(episodes: readonly Episode[], measures: Measures): MeasuredTask[] {
  const hasAnswers = episodes.some(({ metadata }) => typeof metadata.answer === "string");
  const byTask = groupBy(episodes, ({ task_index }) => task_index);
  return Array.from(byTask.values(), (tries) => measure(tries, { ...measures, hasAnswers })).sort(
    (a, b) => a.index - b.index,
  );
}

function measure(episodes: readonly Episode[], measures: Measures & { readonly hasAnswers: boolean }): MeasuredTask {
  const tries = [...episodes].sort((a, b) => a.rollout_index - b.rollout_index);
  const { task, task_index: index } = tries[0]!;
  const counts = { attempts: tries.length, correct: tries.filter(({ is_correct }) => is_correct).length };
  const values: Record<string, number> = { reward: mean(tries.map(episodeReward)) };
  for (const k of measures.ks) values[`pass@${k}`] = passAtK(k, counts);
  if (measures.hasAnswers) {
    const votes = groupVotes(tries.map(voteOf), measures.equal);
    for (const k of measures.ks.filter((each) => each >= LEAST_VOTES)) values[`maj@${k}`] = majorityAtK(k, votes);
  }
  return { id: task.id, index, source: dataSource(task), ...counts, values };
}

/** The sum over its trajectories: 0 for an attempt that failed. */
export function episodeReward({ trajectories }: Episode): number {
  return trajectories.reduce((sum, { reward, steps }) => sum + (reward ?? steps.at(-1)?.reward ?? 0), 0);
}

function voteOf({ metadata, is_correct }: Episode) {
  return { answer: typeof metadata.answer === "string" ? metadata.answer : undefined, is_correct };
}
