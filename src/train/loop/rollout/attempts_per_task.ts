/** How often a task is attempted: `rllm.rollout.n` times, `rllm.rollout.n_val` times in validation. */
import type { Task } from "../../data/types.ts";
import type { LoopSettings } from "../settings.ts";

export interface Attempt {
  readonly task: Task;
  /** Index of the task among those attempted together. */
  readonly task_index: number;
  readonly rollout_index: number;
  /** Samples the most likely tokens, whatever the run's or the agent's sampling parameters are. Absent: false. */
  readonly isGreedy?: boolean;
}

export function attemptsPerTask({ rollout }: LoopSettings, isValidation: boolean): number {
  return isValidation ? rollout.n_val : rollout.n;
}

/** The `count` attempts at one task. */
export function attemptsAt(task: Task, options: { task_index: number; count: number }): Attempt[] {
  const { task_index, count } = options;
  return Array.from({ length: count }, (_, rollout_index) => ({ task, task_index, rollout_index }));
}
