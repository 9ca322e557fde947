/** Scores of a reward model for rollouts: which trajectories get one, batches, and what is refused. */
import { describe, expect, test } from "vitest";
import type { PackedTokens } from "../../../../src/engine/contract/backend.ts";
import type { RewardScorer } from "../../../../src/engine/contract/reward_model.ts";
import { RewardQueue } from "../../../../src/train/loop/rollout/reward_queue.ts";
import type { RolloutTrajectory } from "../../../../src/train/task/rollout.ts";

function step(prompt_ids: readonly number[], response_ids: readonly number[]) {
  return {
    ...{ prompt_ids, response_ids, logprobs: response_ids.map(() => -1), model_response: "", reward: 0, done: true },
    weight_version: 0,
  } as unknown as RolloutTrajectory["steps"][number];
}

/** The score of a sequence is the sum of its tokens. */
class SumScorer implements RewardScorer {
  readonly name = "sums";
  readonly vocabSize = 32;
  readonly contextLength = 6;
  readonly batches: number[] = [];
  value = (tokens: readonly number[]) => tokens.reduce((sum, token) => sum + token, 0);

  async scores({ tokens, offsets }: PackedTokens): Promise<Float32Array> {
    this.batches.push(offsets.length - 1);
    await new Promise((resolve) => setTimeout(resolve, 5));
    return Float32Array.from(offsets.subarray(1), (end, i) => this.value([...tokens.subarray(offsets[i], end)]));
  }

  close(): void {}
}

test("a trajectory without a reward gets the score of its last prompt and response, and another keeps its own", async () => {
  const queue = new RewardQueue(new SumScorer());
  const trajectories: RolloutTrajectory[] = [
    { steps: [step([1], [2]), step([1, 2, 3], [4])], reward: null },
    { steps: [step([9], [9])], reward: 0.5 },
    { steps: [step([5], [6])] },
    { steps: [], reward: null },
  ];
  const { trajectories: judged, is_correct } = await queue.judge({ trajectories, is_correct: true });
  expect(judged.map(({ reward }) => reward)).toEqual([10, 0.5, 11, null]);
  expect(is_correct).toBe(true);
});

test("rollouts that end together are scored together, and those that end meanwhile make the next batch", async () => {
  const scorer = new SumScorer();
  const queue = new RewardQueue(scorer);
  const judge = (token: number) => queue.judge({ trajectories: [{ steps: [step([token], [1])], reward: null }] });
  const first = [judge(1), judge(2), judge(3)];
  await new Promise((resolve) => setTimeout(resolve, 2));
  const results = await Promise.all([...first, judge(4), judge(5)]);
  expect(results.map(({ trajectories }) => trajectories[0]!.reward)).toEqual([2, 3, 4, 5, 6]);
  expect(scorer.batches).toEqual([3, 2]);
  expect((await judge(6)).trajectories[0]!.reward).toBe(7);
});

describe("what cannot be scored is refused, and the next rollout is scored", () => {
  test.each<[string, readonly number[], (scorer: SumScorer) => void, RegExp]>([
    [
      "a rollout beyond the context",
      [1, 2, 3, 4, 5, 6],
      () => {},
      /it has 7 tokens, and the reward model sums takes 6/,
    ],
    [
      "a score that is no number",
      [1],
      (scorer) => {
        scorer.value = () => Number.NaN;
      },
      /the reward model sums gives no finite score \(NaN\)/,
    ],
  ])("%s", async (_, prompt, spoil, message) => {
    const scorer = new SumScorer();
    const queue = new RewardQueue(scorer);
    const { value } = scorer;
    spoil(scorer);
    await expect(queue.judge({ trajectories: [{ steps: [step(prompt, [1])] }] })).rejects.toThrow(message);
    scorer.value = value;
    const { trajectories } = await queue.judge({ trajectories: [{ steps: [step([1], [1])] }] });
    expect(trajectories[0]!.reward).toBe(2);
  });
});
