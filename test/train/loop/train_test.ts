import { expect, test } from "vitest";
import type { TrainOptions } from "../../../src/train/loop/contract.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import { trainStep } from "../../../src/train/loop/step.ts";
import { train } from "../../../src/train/loop/train.ts";
import { singleTurn } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, LETTERS, letterRun, letterTasks } from "../../fixtures/loop.ts";
import { TableBackend } from "../../fixtures/table_backend.ts";

test("train() learns the task", async () => {
  const { run, log } = letterRun({
    settings: { ...LETTER_SETTINGS, trainer: { total_batches: 30, test_freq: 10 } },
  });
  const outcome = await train(run);
  const scores = log.of("val").map((record) => record.metrics["val/copy/pass@1"]);
  expect(outcome).toMatchObject({ isComplete: true, state: { step: 30 } });
  expect(log.of("val").map((record) => record.step)).toEqual([0, 10, 20, 30]);
  expect(scores[0]).toBeLessThan(0.5);
  expect(scores.at(-1)).toBe(1);
});

test("train() repeats exactly, apart from times", async () => {
  const runs = await Promise.all(
    [1, 2].map(async () => {
      const { run, backend, log } = letterRun();
      await train(run);
      return { weights: backend.text(), log: log.records.map(({ metrics }) => withoutTimes(metrics)) };
    }),
  );
  expect(runs[0]).toEqual(runs[1]);
});

test("train() with another seed samples other rollouts", async () => {
  const [a, b] = [
    letterRun(),
    letterRun({ settings: { ...LETTER_SETTINGS, training: { learning_rate: 8, seed: 2 } } }),
  ];
  await train(a.run);
  await train(b.run);
  expect(a.backend.text()).not.toBe(b.backend.text());
});

test("each step, task and attempt has its own random numbers", async () => {
  const { run, log } = letterRun({
    tasks: { train: letterTasks(4), val: [] },
    settings: {
      ...LETTER_SETTINGS,
      rollout: { n: 8, train: { max_tokens: 6 } },
      trainer: { total_batches: 3 },
      training: { learning_rate: 0, seed: 1 },
    },
  });
  await train(run);
  const drawn = log.of("train").flatMap(({ step, episodes }) =>
    episodes!.map(({ task_index, rollout_index, trajectories }) => ({
      of: [step, task_index, rollout_index],
      text: String(trajectories[0]!.steps[0]!.response_ids),
    })),
  );
  expect(drawn).toHaveLength(3 * 4 * 8);
  for (const part of [0, 1, 2]) {
    const same = (a: (typeof drawn)[0], b: (typeof drawn)[0]) =>
      a.of.every((place, i) => (i === part ? place !== b.of[i] : place === b.of[i]));
    const twins = drawn.flatMap((a) => drawn.filter((b) => same(a, b)).map((b) => a.text === b.text));
    expect(twins.filter(Boolean).length / twins.length, String(part)).toBeLessThan(0.2);
  }
});

test("warm-up lowers the cross-entropy of the examples before the first step", async () => {
  const { run, log } = letterRun({
    settings: {
      ...LETTER_SETTINGS,
      warmup: { steps: 20, batch_size: 8, learning_rate: 4 },
      trainer: { total_batches: 1 },
    },
    examples: Array.from(LETTERS, (letter) => ({ prompt: letter, response: letter })),
  });
  await train(run);
  const losses = log.of("warmup").map((record) => record.metrics["warmup/loss"]);
  expect(losses).toHaveLength(20);
  expect(losses[0]).toBeCloseTo(Math.log(5), 5);
  // From ln 5 = 1.61; the learning rate falls to 0 over the twenty steps.
  expect(losses[19]).toBeLessThan(0.4);
  expect(log.records.findIndex((record) => record.phase !== "warmup")).toBe(20);
});

test.each<[string, object, RegExp]>([
  [
    "an unknown setting",
    { settings: { trainer: { total_batchs: 3 } } },
    /trainer.total_batchs.*Did you mean total_batches/,
  ],
  ["an unknown section", { settings: { reward: {} } }, /Cannot set reward: there is no such setting. Names: data, /],
  [
    "a text for a number",
    { settings: { trainer: { total_batches: "3" } } },
    /trainer.total_batches.*it takes int >= -1.*"3"/,
  ],
  [
    "null for a switch",
    { settings: { agent: { overlong_filter: null } } },
    /agent.overlong_filter.*it takes bool, not null/,
  ],
  ["no number", { settings: { training: { learning_rate: Number.NaN } } }, /learning_rate.*it takes float >= 0.*NaN/],
  ["an empty batch", { settings: { data: { train_batch_size: 0 } } }, /train_batch_size.*it takes int >= 1.*0/],
  ["no settings", { settings: 3 }, /Cannot set settings: it takes an object \(3\)/],
  ["no backend", { backend: undefined }, /Cannot train without backend/],
  ["no tasks", { tasks: { val: [] } as never }, /Cannot train without tasks: it must be \{ train/],
  ["no rollout", { rollout: undefined }, /Cannot train without rollout: it must be a function/],
])("%s is refused", async (_, options, message) => {
  await expect(train({ ...letterRun().run, ...options } as TrainOptions)).rejects.toThrow(message);
});

test("arguments of a user's code take any name", async () => {
  const algorithm = { loss_fn: "vanilla", loss_args: { clip_ratio_c: 4 } };
  const { run } = letterRun({ settings: { ...LETTER_SETTINGS, algorithm, trainer: { total_batches: 1 } } });
  expect((await train(run)).isComplete).toBe(true);
});

test("fewer rows than a batch are refused before anything runs", async () => {
  const { run, log } = letterRun({
    settings: { ...LETTER_SETTINGS, data: { train_batch_size: 17 }, warmup: { steps: 2 } },
    examples: [{ prompt: "a", response: "a" }],
  });
  await expect(train(run)).rejects.toThrow(/one needs 17 rows, and the training data has 16/);
  expect(log.records).toEqual([]);
});

test("val_only validates and trains nothing, even without val_before_train", async () => {
  const { run, backend, log } = letterRun({
    settings: { ...LETTER_SETTINGS, trainer: { val_only: true, val_before_train: false } },
  });
  await train(run);
  expect(log.records.map((record) => record.phase)).toEqual(["val"]);
  expect(backend.batches).toEqual([]);
});

test("num_minibatches takes that many optimiser steps and compares with the policy at their start", async () => {
  const { run, backend } = letterRun({
    settings: {
      ...LETTER_SETTINGS,
      trainer: { total_batches: 1 },
      training: { num_minibatches: 4, learning_rate: 8 },
    },
  });
  await train(run);
  expect(backend.weightVersion).toBe(4);
  expect(backend.batches.every((batch) => batch.oldLogprobs !== undefined)).toBe(true);
});

test("a stage can be replaced, wrapped and skipped", async () => {
  const seen: string[] = [];
  const { run, backend } = letterRun({
    settings: { ...LETTER_SETTINGS, trainer: { total_batches: 2, val_before_train: false, test_freq: 0 } },
    stages: {
      ...STAGES,
      reject: ({ groups, held }) => ({
        value: { groups: groups.slice(0, 1), held },
        metrics: { "batch/mine": 1 },
      }),
      update: async (rows, context) => {
        seen.push(`${rows.groups.length} group`);
        return STAGES.update(rows, context);
      },
      process: (rows) => ({ value: rows, metrics: {} }),
    },
  });
  await train(run);
  expect(seen).toEqual(["1 group", "1 group"]);
  expect(backend.batches[0]!.offsets).toHaveLength(9);
});

test("a custom step can wrap trainStep", async () => {
  const order: number[] = [];
  const { run } = letterRun({
    settings: { ...LETTER_SETTINGS, trainer: { total_batches: 3 } },
    step: async (inner, state) => {
      order.push(state.step);
      return trainStep(inner, state);
    },
  });
  await train(run);
  expect(order).toEqual([0, 1, 2]);
});

test("roles can have different estimators and losses, under common denominators", async () => {
  const names: string[] = [];
  const { run, backend } = letterRun({
    settings: {
      ...LETTER_SETTINGS,
      trainer: { total_batches: 1 },
      algorithm: { traj_group_adv_estimator_map: { judge: { estimator: "reinforce", loss_fn: "cispo" } } },
    },
    rollout: async (task, policy) => {
      const [a, b] = [await policy.complete(task.instruction), await policy.complete(task.instruction)];
      return {
        trajectories: [
          { name: "solver", steps: [a] },
          { name: "judge", steps: [{ ...b, reward: 1 }] },
        ],
      };
    },
    estimate: (rewards, _groups, { name }) => {
      names.push(name);
      return { level: "row", values: rewards };
    },
  });
  await train(run);
  expect(names).toEqual(["grpo", "reinforce"]);
  expect(backend.losses.map((loss) => loss.name)).toEqual(["ppo", "cispo"]);
  const totals = new Set(backend.losses.map((loss) => loss.batch_num_tokens));
  expect([...totals]).toEqual([backend.batches.reduce((sum, { mask }) => sum + mask.filter(Boolean).length, 0)]);
});

test("a NaN reward is refused with the trajectory's name", async () => {
  const { run, backend } = letterRun({
    rollout: singleTurn("copier", (_, task) => (task.id === "copy-5" ? Number.NaN : 1)),
  });
  await expect(train(run)).rejects.toThrow(
    /the trajectory copy-5:0\/0 \(copier\): its reward must be a finite number \(NaN\)/,
  );
  expect(backend.weightVersion).toBeLessThan(4);
});

test("a failing rollout is retried, then counted", async () => {
  let tries = 0;
  const bad = singleTurn("copier", (_, task) => {
    if (task.id !== "copy-5") return 1;
    tries++;
    throw new Error("no reward today");
  });
  const settings = {
    ...LETTER_SETTINGS,
    data: { train_batch_size: 16 },
    trainer: { total_batches: 1, val_before_train: false, test_freq: 0 },
  };
  const tolerant = letterRun({
    rollout: bad,
    settings: { ...settings, workflow: { raise_on_error: false } },
  });
  await train(tolerant.run);
  const { metrics } = tolerant.log.of("train")[0]!;
  expect(tries).toBe(3 * 8);
  expect(metrics["batch/termination_reason/error"]).toBe(1 / 16);
  expect(metrics["groups/num_groups"]).toBe(15);
  await expect(train(letterRun({ rollout: bad, settings }).run)).rejects.toThrow(/copy-5:\d.*no reward today/);
});

test("a rollout that hangs ends in timeout", async () => {
  const settings = {
    ...LETTER_SETTINGS,
    trainer: { total_batches: 1, val_before_train: false, test_freq: 0 },
    workflow: { workflow_args: { timeout: 0.05 } },
  };
  const { run, log } = letterRun({ settings, rollout: () => new Promise(() => {}) });
  await expect(train(run)).rejects.toThrow("all 32 rollouts timed out");
  expect(log.of("train")[0]!.metrics["batch/termination_reason/timeout"]).toBe(1);
});

test("a failure of the backend does not count as a failed rollout", async () => {
  const backend = new TableBackend(LETTERS);
  let calls = 0;
  backend.sample = async () => {
    calls++;
    throw new Error("device lost");
  };
  const { run } = letterRun({
    backend,
    settings: { ...LETTER_SETTINGS, workflow: { raise_on_error: false } },
  });
  await expect(train(run)).rejects.toThrow("device lost");
  expect(calls).toBe(1);
  const careless = letterRun({
    backend,
    rollout: async (task, policy) => {
      await policy.complete(task.instruction).catch(() => {});
      return 1;
    },
  });
  await expect(train(careless.run)).rejects.toThrow("device lost");
});

test("all rollouts of a step are sampled in one batch", async () => {
  const backend = new TableBackend(LETTERS);
  const sizes: number[] = [];
  const sample = backend.sample.bind(backend);
  backend.sample = async (requests, options) => {
    sizes.push(requests.length);
    return sample(requests, options);
  };
  const settings = {
    ...LETTER_SETTINGS,
    trainer: { total_batches: 1, val_before_train: false, test_freq: 0 },
  };
  const twoTurns = letterRun({
    backend,
    settings,
    rollout: async (task, policy) => {
      const first = await policy.complete(task.instruction);
      const second = await policy.complete([...first.prompt_ids, ...first.response_ids, 1]);
      return { trajectories: [{ name: "t", steps: [first, second], reward: 1 }] };
    },
  });
  await train(twoTurns.run);
  expect(sizes).toEqual([32, 32]);
  expect(backend.batches[0]!.offsets).toHaveLength(33);
  expect(twoTurns.log.of("train")[0]!.metrics["batch/merge_compression_ratio"]).toBe(2);
});

function withoutTimes(metrics: Record<string, number>) {
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => !/^(time|perf)\//.test(name)));
}

test("KL to the reference freezes it once, after the warm-up", async () => {
  const backend = new TableBackend(LETTERS);
  const frozenAt: number[] = [];
  Object.assign(backend, { freezeReference: () => void frozenAt.push(backend.weightVersion) });
  const { run } = letterRun({
    backend,
    settings: {
      ...LETTER_SETTINGS,
      warmup: { steps: 3, batch_size: 4, learning_rate: 1 },
      trainer: { total_batches: 2 },
      algorithm: { kl_beta: 0.1 },
    },
    examples: Array.from(LETTERS, (letter) => ({ prompt: letter, response: letter })),
  });
  await train(run);
  expect(frozenAt).toEqual([3]);
  expect(backend.losses.at(-1)?.kl).toEqual({ type: "low_var_kl", coef: 0.1 });
  expect(backend.batches.at(-1)?.refLogprobs).toBeDefined();
});
