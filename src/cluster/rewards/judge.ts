/** Judges replies that the cluster sampled by itself: the reward and the evaluator of the run, on its own tasks. */
import { longestToken } from "../../chat/text_work.ts";
import { Turns } from "../../chat/turns.ts";
import type { Episode } from "../../train/data/types.ts";
import { componentKeys } from "../../train/loop/roles.ts";
import { runAttempt, templateVariables } from "../../train/loop/rollout/attempt.ts";
import type { Draws } from "../../train/loop/rollout/draw_queue.ts";
import { JobPool } from "../../train/loop/rollout/job_pool.ts";
import { pickComponents } from "../../train/loop/stages/components.ts";
import { withReward } from "../../train/loop/stages/transform.ts";
import { type AttemptParts, causeOf, contextOf, finiteMetrics, noTask, taskAt } from "./attempts.ts";
import type { ServiceFigures } from "./figures.ts";
import { onGivenReply } from "./given_reply.ts";
import type { RewardItem, RewardResult, TaskPlace } from "./protocol.ts";

export interface JudgeOptions {
  readonly parts: AttemptParts;
  readonly figures: ServiceFigures;
  /** Aborts when the service closes. */
  readonly signal: AbortSignal;
}

/** Nothing is sampled for a given reply. */
const NO_DRAWS: Draws = {
  during: (run) => run(),
  draw: () => Promise.reject(new Error("Cannot sample: the reply to judge was given.")),
  failure: undefined,
};

/** At most `workflow.n_parallel_tasks` judgements run at once, as attempts do here. */
export class ServiceJudge {
  private readonly options: JudgeOptions;
  private readonly pool: JobPool;

  private readonly turns = new Turns();

  constructor(options: JudgeOptions) {
    this.options = options;
    this.pool = new JobPool(options.parts.settings.workflow.n_parallel_tasks);
  }

  /** @throws Error for a reply that no context holds, which an evaluator would read as tokens */
  private checkLength(text: string): void {
    const { tokenizer, evaluate, model } = this.options.parts;
    if (!tokenizer || !evaluate) return;
    const most = model.contextLength * longestToken(tokenizer);
    if (text.length > most)
      throw new Error(
        `Cannot judge the reply: it has ${text.length} characters, and the ${model.contextLength} tokens of the model's context hold ${most} at most.`,
      );
  }

  /** One result per item, in their order. Never rejects: an item that cannot be judged has an error. */
  judge(items: readonly RewardItem[]): Promise<RewardResult[]> {
    return Promise.all(items.map((item) => this.queued(item)));
  }

  /** Resolves when nothing is being judged. */
  idle(): Promise<void> {
    return this.pool.finish();
  }

  private queued(item: RewardItem): Promise<RewardResult> {
    const { figures } = this.options;
    figures.judgements.waiting++;
    return new Promise((resolve) => {
      this.pool.add(async () => {
        await this.turns.take();
        const started = performance.now();
        const result = await this.resultOf(item);
        figures.judgementSeconds.observe((performance.now() - started) / 1000);
        figures.judgements.waiting--;
        figures.judgements.total++;
        resolve(result);
      });
    });
  }

  private async resultOf({ task, solution }: RewardItem): Promise<RewardResult> {
    if ("error" in task) return this.failed("an unknown task", task.error);
    const { parts } = this.options;
    const found = taskAt(parts, task);
    if (!found) return this.failed(`${task.split} ${task.index}`, noTask(parts, task));
    try {
      this.checkLength(solution);
      const attempt = { task: found, task_index: task.index, rollout_index: 0 };
      const context = this.contextFor(solution, task);
      const episode = await runAttempt(attempt, { draws: NO_DRAWS, rank: 0, context });
      const result = resultOf(episode, componentKeys(parts.settings.algorithm));
      parts.onEpisode?.(episode, context);
      return result;
    } catch (error) {
      return this.failed(found.id, causeOf(error));
    }
  }

  private contextFor(text: string, { split }: TaskPlace) {
    const { parts, signal } = this.options;
    const { rollout, evaluate, settings } = parts;
    const reply = { text, variables: templateVariables(settings), hasEvaluator: evaluate !== undefined };
    const judgeParts = { ...parts, rollout: onGivenReply(rollout, reply) };
    return contextOf(judgeParts, { step: 0, isValidation: split === "val", signal });
  }

  private failed(where: string, message: string): RewardResult {
    const { figures } = this.options;
    figures.judgements.failed++;
    figures.failed({ kind: "judgement", where, message });
    return { error: message };
  }
}

/** @throws Error for a judgement that was not finished, that is no finite number, or that lacks a component */
function resultOf(
  { trajectories, is_correct, metrics, termination_reason, task }: Episode,
  keys: readonly string[],
): RewardResult {
  const [trajectory] = trajectories;
  if (!trajectory)
    throw new Error(
      `Cannot judge the task ${task.id}: the attempt ended with ${termination_reason} before its reward was known. Correct the reward function, or raise rllm.workflow.workflow_args.timeout.`,
    );
  const { reward } = withReward(trajectory, { group_role: trajectory.name });
  return {
    score: reward,
    is_correct,
    metrics: finiteMetrics(metrics),
    ...(keys.length > 0 && { components: pickComponents(trajectory, keys) }),
  };
}
