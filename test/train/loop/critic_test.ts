/** A step with a critic: what it is asked, what it learns, when the policy waits for it. */
import { describe, expect, test } from "vitest";
import type { Critic, CriticBatch, CriticLoss, OptimParams } from "../../../src/engine/contract/backend.ts";
import type { LoopState, TrainOptions } from "../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { train } from "../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

/** Values every token at 0.25, and notes what it is asked. */
class NotingCritic implements Critic {
  version = 0;
  readonly batches: CriticBatch[] = [];
  readonly losses: CriticLoss[] = [];
  readonly params: OptimParams[] = [];
  async values({ tokens }: { tokens: Uint32Array }, { mask }: { mask: Uint32Array }) {
    return Float32Array.from(tokens, (_, t) => 0.25 * mask[t]!);
  }
  async forwardBackward(batch: CriticBatch, loss: CriticLoss) {
    this.batches.push(batch);
    this.losses.push(loss);
    return { "critic/vf_loss": 1 };
  }
  async optimStep(params: OptimParams) {
    this.params.push(params);
    this.version++;
    return { "critic/lr": params.learning_rate };
  }
}

function criticRun(settings: Partly<LoopSettings> = {}, options: Partial<TrainOptions> = {}) {
  const { run, backend, log } = letterRun({ estimate: estimateAdvantages, ...options });
  const critic = new NotingCritic();
  const order: string[] = [];
  const update = backend.forwardBackward.bind(backend);
  Object.assign(backend, {
    critic,
    forwardBackward: (...args: Parameters<typeof update>) => {
      order.push(`policy after ${critic.version}`);
      return update(...args);
    },
  });
  const merged = {
    ...LETTER_SETTINGS,
    trainer: { total_batches: 2, ...settings.trainer },
    algorithm: { adv_estimator: "gae", ...settings.algorithm },
    ...(settings.critic && { critic: settings.critic }),
    ...(settings.pipeline && { pipeline: settings.pipeline }),
  };
  return { run: { ...run, settings: merged }, backend, critic, log, order };
}

/** The same stages, as a list that is not the published one. */
const LISTED = ["generate", "transform", "reject", "batch", "process", "advantages", "update", "log", "log"];

describe.each([
  ["the eight stages", undefined],
  ["a list of stages", { stages: LISTED }],
])("by %s", (_, pipeline) => {
  test("the critic learns each token's return, before the policy's update", async () => {
    const { run, critic, log, order } = criticRun(pipeline ? { pipeline } : {});
    await train(run);
    expect(order).toEqual(["policy after 1", "policy after 2"]);
    const [{ offsets, mask, returns, oldValues }] = critic.batches as [CriticBatch];
    let rewarded = 0;
    for (let row = 0; row + 1 < offsets.length; row++) {
      const tokens = [...mask.keys()].filter((t) => t >= offsets[row]! && t < offsets[row + 1]! && mask[t] === 1);
      // gamma = lambda = 1: the return is the reward of the row.
      const [reward] = tokens.map((t) => returns[t]!);
      expect([0, 1]).toContain(Math.round(reward!));
      for (const t of tokens) expect(returns[t]).toBeCloseTo(reward!, 6);
      for (const t of tokens) expect(oldValues[t]).toBe(0.25);
      rewarded += Math.round(reward!);
    }
    expect(rewarded).toBeGreaterThan(0);
    const { metrics } = log.of("train")[0]!;
    expect(metrics["critic/values/mean"]).toBeCloseTo(0.25, 6);
    // Constant values explain nothing.
    expect(metrics["critic/vf_explained_var"]).toBeCloseTo(0, 3);
    expect(metrics["critic/returns/max"]).toBeCloseTo(1, 6);
    expect(metrics["critic/advantages/mean"]).toBeCloseTo(0, 5);
    expect(metrics["critic/vf_loss"]).toBe(1);
  });
});

test("gamma and lambda reach the estimator, whose own arguments win", async () => {
  const returnsAt = async (algorithm: Partly<LoopSettings["algorithm"]>) => {
    const { run, critic } = criticRun({ algorithm, trainer: { total_batches: 1 } });
    await train(run);
    const { offsets, mask, returns } = critic.batches[0]!;
    const rows = Array.from({ length: offsets.length - 1 }, (_, row) =>
      [...mask.keys()].filter((t) => t >= offsets[row]! && t < offsets[row + 1]! && mask[t] === 1),
    );
    return rows.filter(({ length }) => length === 2).map((tokens) => tokens.map((t) => returns[t]!));
  };
  for (const algorithm of [
    { gamma: 0.5, lam: 1 },
    { gamma: 1, estimator_args: { gamma: 0.5 } },
  ]) {
    const pairs = await returnsAt(algorithm);
    expect(pairs.length).toBeGreaterThan(0);
    for (const [first, last] of pairs) expect(first).toBeCloseTo(0.5 * last!, 6);
  }
  for (const [first] of await returnsAt({ lam: 0 })) expect(first).toBeCloseTo(0.25, 6);
});

test("mini-batches, epochs, rate, clip and aggregation are the critic's own", async () => {
  const { run, critic } = criticRun({
    trainer: { total_batches: 2 },
    critic: {
      ppo_epochs: 2,
      ppo_mini_batch_size: 2,
      cliprange_value: 0.1,
      loss_agg_mode: "seq-mean-token-mean",
      optim: { lr: 0.5, betas: [0.8, 0.9], weight_decay: 0.3, clip_grad: 4, lr_scheduler_type: "linear" },
    },
  });
  await train(run);
  // Two steps, two epochs, 4 prompts in mini-batches of 2.
  expect(critic.batches).toHaveLength(8);
  expect(critic.losses[0]).toEqual({
    loss_agg_mode: "seq-mean-token-mean",
    cliprange_value: 0.1,
    loss_scale_factor: 2,
  });
  expect(critic.params[0]).toEqual({
    learning_rate: 0.25,
    beta1: 0.8,
    beta2: 0.9,
    eps: 1e-8,
    weight_decay: 0.3,
    grad_clip_norm: 4,
  });
});

test.each([
  // 4 prompts of 4 rows: the last mini-batch may hold fewer prompts, as in verl.
  [1, 4],
  [2, 2],
  [3, 2],
  [4, 1],
  [5, 1],
])("mini-batches of %i prompts are %i", async (ppo_mini_batch_size, expected) => {
  const { run, critic } = criticRun({ trainer: { total_batches: 1 }, critic: { ppo_epochs: 1, ppo_mini_batch_size } });
  await train(run);
  expect(critic.batches).toHaveLength(expected);
});

test("before step critic_warmup the critic trains alone, and such a step counts as trained", async () => {
  const { run, critic, log, order } = criticRun({ trainer: { total_batches: 4, critic_warmup: 3 } });
  const { state } = await train(run);
  expect(order).toEqual(["policy after 3", "policy after 4"]);
  expect(critic.version).toBe(4);
  expect(state.untrained).toBeUndefined();
  const isPolicy = log.of("train").map(({ metrics }) => "actor/lr" in metrics || "actor/grad_norm" in metrics);
  expect(isPolicy).toEqual([false, false, true, true]);
});

test("an estimator without returns of its own gives its advantages to the critic, as in verl", async () => {
  const { run, critic } = criticRun({ algorithm: { adv_estimator: "grpo" }, trainer: { total_batches: 1 } });
  await train(run);
  expect(new Set(critic.batches[0]!.returns).size).toBeGreaterThan(1);
});

describe("checkpoints", () => {
  test("a step that changed the critic and failed is not saved", async () => {
    const saved: LoopState[] = [];
    const checkpoints = {
      async save(_: string, { state }: { state: LoopState }) {
        saved.push(state);
      },
      find: async () => undefined,
    };
    const { run, backend } = criticRun({ trainer: { total_batches: 2, save_freq: -1 } }, { checkpoints });
    const stop = new AbortController();
    const steps = backend.optimStep.bind(backend);
    let taken = 0;
    backend.optimStep = async (params) => {
      if (++taken < 2) return steps(params);
      stop.abort(new Error("stopped"));
      throw stop.signal.reason;
    };
    const warnings: string[] = [];
    await train({ ...run, signal: stop.signal, warn: (message) => warnings.push(message) });
    expect(saved.map(({ step, criticVersion }) => [step, criticVersion])).toEqual([]);
    expect(warnings.join()).toContain("Step 2 is not saved");
  });

  test("a run without a critic continues from a checkpoint with one, and saves its steps", async () => {
    const saved: LoopState[] = [];
    const checkpoints = {
      async save(_: string, { state }: { state: LoopState }) {
        saved.push(state);
      },
      find: async () => saved.at(-1) && { dir: "dir", state: saved.at(-1)! },
    };
    const { run } = criticRun({ trainer: { total_batches: 1 } }, { checkpoints });
    await train(run);
    const later = letterRun({ estimate: estimateAdvantages, checkpoints });
    Object.assign(later.backend, { load: async () => {} });
    await train({ ...later.run, settings: { ...LETTER_SETTINGS, trainer: { total_batches: 2 } } });
    expect(saved.map(({ step, criticVersion }) => [step, criticVersion])).toEqual([
      [1, 1],
      [2, undefined],
    ]);
  });
});

test.each([
  ["gae on a backend without a critic", { algorithm: { adv_estimator: "gae" } }, /the backend table has no critic/],
  [
    "gae of one role",
    { algorithm: { traj_group_adv_estimator_map: { judge: "gae" } } },
    /the backend table has no critic/,
  ],
  ["three betas", { critic: { optim: { betas: [0.1, 0.2, 0.3] } } }, /Cannot set critic\.optim\.betas/],
  ["a beta of 1", { critic: { optim: { betas: [0.9, 1] } } }, /\(\[0\.9,1\]\)/],
] as const)("refuses %s before the run", async (_, settings, message) => {
  const { run } = letterRun({ settings: settings as Partly<LoopSettings>, estimate: estimateAdvantages });
  await expect(train(run)).rejects.toThrow(message);
});
