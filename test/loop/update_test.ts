import { expect, test } from "vitest";
import type { Advantages, Backend, LossSpec, OptimParams, TrainBatch } from "../../src/contract/backend.ts";
import { packTrajectories } from "../../src/data/pack.ts";
import type { RewardedTrajectory, Step, TrajectoryGroup } from "../../src/data/types.ts";
import type { StageContext } from "../../src/loop/contract.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../src/loop/settings.ts";
import { learningRateScale } from "../../src/loop/stages/learning_rate.ts";
import { process } from "../../src/loop/stages/process.ts";
import { update } from "../../src/loop/stages/update.ts";
import { perRow, perToken } from "../fixtures/advantages.ts";

const step = (response_ids: number[]): Step => ({
  prompt_ids: [1],
  response_ids,
  logprobs: response_ids.map(() => -1),
  model_response: "",
  reward: 0,
  done: true,
});

/** Trajectories of a role with responses of these lengths. */
function group(role: string, lengths: readonly number[]): TrajectoryGroup {
  const trajectories = lengths.map((length, i): RewardedTrajectory => {
    const ids = Array.from({ length }, (_, t) => t + 2);
    return { uid: `${role}/${i}`, name: role, steps: [step(ids)], reward: 0 };
  });
  return { group_id: role, task_id: "t", group_role: role, trajectories, metadata: [] };
}

/** Records its training inputs. */
function recorder() {
  const calls: { batch: TrainBatch; loss: LossSpec }[] = [];
  const steps: { calls: number; params: OptimParams }[] = [];
  const backend = {
    forwardBackward: async (batch: TrainBatch, loss: LossSpec) => {
      calls.push({ batch, loss });
      return {};
    },
    optimStep: async (params: OptimParams) => {
      steps.push({ calls: calls.length, params });
      return {};
    },
  } as unknown as Backend;
  return { backend, calls, steps };
}

const contextOf = (backend: Partial<Backend>, settings: Partly<LoopSettings>) =>
  ({ backend, settings: loopSettings(settings), loggers: [], step: 1, totalSteps: 1 }) as unknown as StageContext;

async function batchesOf(rows: Parameters<typeof update>[0], settings: Partly<LoopSettings>) {
  const { backend, calls, steps } = recorder();
  await update(rows, contextOf(backend, settings));
  return { steps, batches: calls.map(({ batch }) => ({ ...batch.advantages, tokens: [...batch.tokens] })) };
}

/** Rows of 2, 3, 2 and 3 tokens, of which the first is the prompt's. */
const ROWS = packTrajectories([group("a", [1, 2]), group("b", [1, 2])]);
const EACH_TOKEN = perToken(0, 10, 0, 20, 21, 0, 30, 0, 40, 41);

test.each<[string, Advantages, Advantages[]]>([
  ["per row", perRow(1, 2, 3, 4), [perRow(1, 2), perRow(3, 4)]],
  ["per token", EACH_TOKEN, [perToken(0, 10, 0, 20, 21), perToken(0, 30, 0, 40, 41)]],
])("each mini-batch trains with its own advantages %s", async (_, advantages, expected) => {
  const { steps, batches } = await batchesOf({ ...ROWS, advantages }, { training: { num_minibatches: 2 } });
  expect(steps.map(({ calls }) => calls)).toEqual([1, 2]);
  expect(batches.map(({ level, values }) => ({ level, values }))).toEqual(expected);
});

test.each<[string, Advantages, Advantages[]]>([
  ["per row", perRow(1, 2, 3, 4), [perRow(2), perRow(3, 4)]],
  ["per token", EACH_TOKEN, [perToken(0, 20, 21), perToken(0, 30, 0, 40, 41)]],
])(
  "rows without a trained token, and rows of another loss, keep their own advantages %s",
  async (_, advantages, expected) => {
    const mask = ROWS.mask.slice().fill(0, 0, 2);
    const algorithm = { traj_group_adv_estimator_map: { b: { loss_fn: "cispo" } } };
    const { steps, batches } = await batchesOf({ ...ROWS, mask, advantages }, { algorithm });
    expect(steps.map(({ calls }) => calls)).toEqual([2]);
    expect(batches.map(({ level, values }) => ({ level, values }))).toEqual(expected);
  },
);

test.each([
  ["after the last step of the warm-up it is whole", { warmup_steps: 4 }, 4, 1],
  ["before it, a share", { warmup_steps: 4 }, 3, 0.75],
  ["then the schedule begins", { warmup_steps: 4 }, 7, 0.5],
  ["0 steps leave it to the ratio", { warmup_steps: 0, warmup_steps_ratio: 0.4 }, 2, 0.5],
  ["-1 steps too", { warmup_steps: -1, warmup_steps_ratio: 0.4 }, 2, 0.5],
  ["steps come before the ratio", { warmup_steps: 1, warmup_steps_ratio: 0.4 }, 1, 1],
  ["a warm-up to the end", { warmup_steps: 10 }, 10, 1],
])("learning rate: %s", (_, options, at, scale) => {
  const schedule = { lr_schedule: "linear", warmup_steps_ratio: 0, ...options } as const;
  expect(learningRateScale(at, 10, schedule)).toBe(scale);
});

/** Log-probs of the old and the reference policy, and the requested temperatures. */
function scorer(old: readonly number[]) {
  const asked: { policy: string; temperature: number }[] = [];
  const logprobs: Backend["logprobs"] = async ({ tokens }, options) => {
    asked.push(options);
    const of = (t: number) => (options.policy === "current" ? old[t]! : -9);
    return { logprobs: Float32Array.from(tokens, (_, t) => of(t)) };
  };
  return { backend: { logprobs }, asked };
}

test("old and reference log-probs are computed at the sampling temperature, of response tokens alone", async () => {
  const { backend, asked } = scorer(new Array(10).fill(-1));
  const rollout = { train: { temperature: 0.5 } };
  const algorithm = { kl_beta: 0.1, rollout_correction: { bypass_mode: false } };
  const { value } = await process(ROWS, contextOf(backend, { rollout, algorithm }));
  expect(asked).toEqual([
    { policy: "current", temperature: 0.5, mask: ROWS.mask },
    { policy: "reference", temperature: 0.5, mask: ROWS.mask },
  ]);
  expect(value.refLogprobs?.[1]).toBe(-9);
});

test.each([
  ["token", 2, [0, 1.5, 0, 2, 0.25, 0, 1, 0, 2, 2]],
  ["token", 1.25, [0, 1.25, 0, 1.25, 0.25, 0, 1, 0, 1.25, 1.25]],
  ["sequence", 2, [0, 1.5, 0, 1, 1, 0, 1, 0, 2, 2]],
  ["sequence", 0.75, [0, 0.75, 0, 0.75, 0.75, 0, 0.75, 0, 0.75, 0.75]],
] as const)(
  "importance weights of a %s are capped at %f after the exponential",
  async (tis_mode, tis_cap, expected) => {
    const ratios = [7, 1.5, 7, 4, 0.25, 7, 1, 7, 8, 2];
    const { backend } = scorer(ratios.map((ratio) => Math.log(ratio) - 1));
    const algorithm = { rollout_correction: { bypass_mode: false, tis_mode, tis_cap } };
    const { value } = await process(ROWS, contextOf(backend, { algorithm }));
    for (const [t, weight] of expected.entries()) expect(value.rolloutIsWeights?.[t]).toBeCloseTo(weight, 5);
  },
);

test("the parts of a mini-batch share its denominators and use the configured aggregation", async () => {
  const { backend, calls } = recorder();
  const advantages = perRow(1, 2, 3, 4);
  const algorithm = { traj_group_adv_estimator_map: { b: { loss_fn: "cispo" } } };
  await update({ ...ROWS, advantages }, contextOf(backend, { algorithm }));
  const shared = { batch_num_tokens: 6, global_batch_size: 4 };
  expect(calls.map(({ loss }) => loss)).toEqual([
    expect.objectContaining({ loss_agg_mode: "token-mean", ...shared }),
    expect.objectContaining({ loss_agg_mode: "token-mean", ...shared }),
  ]);
  await update({ ...ROWS, advantages }, contextOf(backend, { algorithm: { loss_agg_mode: "seq-mean-token-sum" } }));
  expect(calls.at(-1)?.loss.loss_agg_mode).toBe("seq-mean-token-sum");
});
