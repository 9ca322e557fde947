/**
 * Batches the scores of concurrent rollouts: those that end while others are being scored are scored together next. A score does not
 * depend on the others of its batch.
 */
import type { RewardScorer } from "../../../engine/contract/reward_model.ts";
import { offsetsOf } from "../../../engine/packing/offsets.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { RolloutResult, RolloutTrajectory } from "../../task/rollout.ts";
import type { RewardJudge } from "../contract.ts";

interface Waiting {
  readonly ids: readonly number[];
  readonly resolve: (score: number) => void;
  readonly reject: (error: unknown) => void;
}

/** The reward model of a run, as its rollouts ask it. */
export class RewardQueue implements RewardJudge {
  private readonly scorer: RewardScorer;
  private waiting: Waiting[] = [];
  private isScoring = false;

  constructor(scorer: RewardScorer) {
    this.scorer = scorer;
  }

  /**
   * Gives each trajectory without a reward the score of its last prompt and response. A reward that the rollout gave stays.
   * @throws {ConfigError} for a trajectory that is longer than the reward model's context, and a score that is not finite
   */
  async judge(result: RolloutResult): Promise<RolloutResult> {
    const trajectories = await Promise.all(result.trajectories.map((each) => this.withScore(each)));
    return { ...result, trajectories };
  }

  async recover(): Promise<void> {
    await this.scorer.recover?.();
  }

  private async withScore(trajectory: RolloutTrajectory): Promise<RolloutTrajectory> {
    const step = trajectory.steps.at(-1);
    if ((trajectory.reward ?? null) !== null || step === undefined) return trajectory;
    const ids = [...step.prompt_ids, ...step.response_ids];
    const { contextLength, name } = this.scorer;
    if (ids.length > contextLength)
      throw new ConfigError(
        `Cannot score the rollout: it has ${ids.length} tokens, and the reward model ${name} takes ${contextLength}. Lower rllm.data.max_prompt_length or max_response_length, or give another reward model.`,
        { path: "reward_model.model.path" },
      );
    return { ...trajectory, reward: await this.score(ids) };
  }

  private score(ids: readonly number[]): Promise<number> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ ids, resolve, reject });
      if (this.isScoring) return;
      this.isScoring = true;
      // Rollouts that were sampled together end in the same turn of the event loop, or in the next.
      setTimeout(() => void this.scoreAll(), 0);
    });
  }

  private async scoreAll(): Promise<void> {
    while (this.waiting.length > 0) {
      const batch = this.waiting;
      this.waiting = [];
      try {
        const scores = await this.scoresOf(batch);
        batch.forEach(({ resolve }, i) => void resolve(scores[i]!));
      } catch (error) {
        for (const { reject } of batch) reject(error);
      }
    }
    this.isScoring = false;
  }

  private async scoresOf(batch: readonly Waiting[]): Promise<Float32Array> {
    const offsets = offsetsOf(batch.map(({ ids }) => ids.length));
    const scores = await this.scorer.scores({ offsets, tokens: Uint32Array.from(batch.flatMap(({ ids }) => ids)) });
    const broken = scores.findIndex((score) => !Number.isFinite(score));
    if (broken < 0) return scores;
    throw new ConfigError(
      `Cannot score the rollout: the reward model ${this.scorer.name} gives no finite score (${scores[broken]}). Give another checkpoint of it.`,
      { path: "reward_model.model.path" },
    );
  }
}
