/** ReMax end to end: one greedy attempt at each task is the baseline of the task's rollouts, and nothing else. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import type { SampleRequest } from "../../../src/engine/contract/backend.ts";
import type { Checkpoint } from "../../../src/train/log/checkpoint/store.ts";
import type { EpisodeSource, LoopState, TrainOptions } from "../../../src/train/loop/contract.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../src/train/loop/settings.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { playsGreedy } from "../../../src/train/loop/stages/greedy.ts";
import { train } from "../../../src/train/loop/train.ts";
import type { Rollout } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun, letterTasks } from "../../fixtures/loop.ts";

const N = 4;
const ASYNC = { async_training: { enable: true, mini_batch_size: 4 } } satisfies Partly<LoopSettings>;

/** A run of two steps that notes what it asks of the sampler. */
function remaxRun(settings: Partly<LoopSettings> = {}, options: Partial<TrainOptions> = {}) {
  const made = letterRun({
    estimate: estimateAdvantages,
    ...options,
    settings: {
      ...LETTER_SETTINGS,
      rollout: { ...LETTER_SETTINGS.rollout, n: N, train: { max_tokens: 2, top_p: 0.9 } },
      workflow: { raise_on_error: false },
      ...settings,
      trainer: { total_batches: 2, test_freq: 0, val_before_train: false, ...settings.trainer },
      algorithm: { adv_estimator: "remax", ...settings.algorithm },
    },
  });
  const asked: SampleRequest[] = [];
  const sample = made.backend.sample.bind(made.backend);
  made.backend.sample = async (requests, how) => {
    asked.push(...requests);
    return sample(requests, how);
  };
  return { ...made, asked };
}

const isGreedy = ({ params: { temperature, top_p, top_k } }: SampleRequest) =>
  temperature === 0 && top_p === 1 && top_k === -1;

/** Rewards a reply by its first letter: a to d earn 1 to 4. The greedy attempt is told by its place. */
const byLetter =
  (seen: { greedy: number[]; others: number[] } = { greedy: [], others: [] }): Rollout =>
  async (task, policy) => {
    const { model_response } = await policy.agent("speller").complete(task.instruction);
    const reward = model_response === "" ? 0 : model_response.charCodeAt(0) - 96;
    (policy.place.is_greedy ? seen.greedy : seen.others).push(reward);
    return reward;
  };

const withoutTimes = (metrics: Readonly<Record<string, number>>) =>
  Object.fromEntries(Object.entries(metrics).filter(([name]) => !/^(time|perf|async)\//.test(name)));

describe.each([
  ["synchronously", {}],
  ["asynchronously", ASYNC],
])("%s", (_, settings) => {
  test("each task is also attempted greedily, and its rollouts are compared with that reward", async () => {
    const seen = { greedy: [] as number[], others: [] as number[] };
    const { run, backend, log, asked } = remaxRun(settings, { rollout: byLetter(seen) });
    await train(run);
    expect(asked.filter(isGreedy)).toHaveLength(2 * 4);
    expect(asked).toHaveLength(2 * 4 * (N + 1));
    const [{ metrics, episodes = [] }] = log.of("train") as [(typeof log.records)[0]];
    // The table is flat before the first update: the most likely token is the first one, the end of the reply.
    expect(seen.greedy.slice(0, 4)).toEqual([0, 0, 0, 0]);
    expect(episodes).toHaveLength(4 * N);
    const trained = episodes.flatMap(({ trajectories }) => trajectories);
    expect(trained.map(({ reward_baseline }) => reward_baseline)).toEqual(Array(4 * N).fill(0));
    const [{ advantages, offsets, mask }] = backend.batches as [(typeof backend.batches)[0]];
    expect(advantages.level).toBe("token");
    trained.forEach(({ reward }, row) => {
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t]) expect(advantages.values[t]).toBe(reward);
    });
    expect(metrics).toMatchObject({
      "reward/speller/greedy_mean": 0,
      "batch/groups_dropped_no_baseline": 0,
      "groups/num_trajs_before_filter": 4 * N,
      "groups/max_group_size": N,
    });
    expect(seen.others.length).toBe(2 * 4 * N);
  });

  test("the second step's baselines are what the trained policy earns greedily", async () => {
    const seen = { greedy: [] as number[], others: [] as number[] };
    const { run, log, backend } = remaxRun(settings, { rollout: byLetter(seen) });
    await train(run);
    const { episodes = [], metrics } = log.of("train")[1]!;
    const greedy = seen.greedy.slice(4);
    const baselines = episodes.map(({ trajectories }) => trajectories[0]!.reward_baseline!);
    expect(new Set(baselines)).toEqual(new Set(greedy));
    expect(Math.max(...baselines)).toBeGreaterThan(0);
    const mean = baselines.reduce((sum, each) => sum + each) / baselines.length;
    expect(metrics["reward/speller/greedy_mean"]).toBeCloseTo(mean, 6);
    const { advantages, offsets } = backend.batches[1]!;
    episodes.forEach(({ trajectories: [each] }, row) => {
      expect(advantages.values[offsets[row + 1]! - 1]).toBeCloseTo(each!.reward! - each!.reward_baseline!, 6);
    });
  });

  test("the rollouts are those of another estimator, and so are its metrics", async () => {
    const other = remaxRun({ ...settings, algorithm: { adv_estimator: "rloo" }, trainer: { total_batches: 1 } });
    const own = remaxRun({ ...settings, trainer: { total_batches: 1 } });
    await train(other.run);
    await train(own.run);
    expect(other.asked.filter(isGreedy)).toEqual([]);
    const key = ({ prompt_ids, seed }: SampleRequest) => `${prompt_ids} ${seed}`;
    expect(own.asked.filter((each) => !isGreedy(each)).map(key)).toEqual(other.asked.map(key));
    const [a, b] = [own, other].map(({ log }) => log.of("train")[0]!.metrics);
    const { "reward/copier/greedy_mean": greedy, "batch/groups_dropped_no_baseline": dropped, ...same } = a!;
    expect([greedy, dropped]).toEqual([0, 0]);
    const estimated = /^(advantage|actor)\//;
    const kept = (metrics: typeof b) =>
      Object.fromEntries(Object.entries(withoutTimes(metrics!)).filter(([name]) => !estimated.test(name)));
    expect(kept(same)).toEqual(kept(b));
  });

  test("a greedy attempt that fails for good costs its task the group, and is retried before", async () => {
    let tries = 0;
    const rollout: Rollout = async (task, policy) => {
      if (policy.place.is_greedy && task.instruction === "a") {
        tries++;
        throw new Error("no greedy reply");
      }
      return byLetter()(task, policy);
    };
    const { run, log, backend } = remaxRun({ ...settings, trainer: { total_batches: 1 } }, { rollout });
    await train(run);
    expect(tries).toBe(loopSettings().workflow.retry_limit);
    const { metrics, episodes = [] } = log.of("train")[0]!;
    const failed = episodes.filter(({ task }) => task.instruction === "a").length / N;
    expect(failed).toBeGreaterThan(0);
    expect(metrics).toMatchObject({
      "batch/groups_dropped_no_baseline": failed,
      "batch/groups_before_filter": 4,
      "batch/groups_after_filter": 4 - failed,
      "batch/rollouts_failed": 0,
    });
    expect(backend.batches[0]!.offsets).toHaveLength((4 - failed) * N + 1);
  });
});

test.each([false, true])(
  "with generation ahead of training, also where it runs on over a synchronisation (%s), each rollout has a baseline",
  async (partial_rollout) => {
    const rollout: Rollout = async (task, policy) => {
      await policy.complete(task.instruction);
      await new Promise((resolve) => setTimeout(resolve, task.instruction === "a" ? 15 : 1));
      return byLetter()(task, policy);
    };
    const settings = { async_training: { ...ASYNC.async_training, staleness_threshold: 2, partial_rollout } };
    const { run, log, asked } = remaxRun({ ...settings, trainer: { total_batches: 8 } }, { rollout });
    await train(run);
    const steps = log.of("train");
    expect(Math.max(...steps.map(({ metrics }) => metrics["async/staleness_max"]!))).toBeGreaterThan(0);
    for (const { episodes = [], metrics } of steps) {
      expect(episodes.map(({ rollout_index }) => rollout_index)).toEqual([
        0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
      ]);
      for (const { trajectories } of episodes)
        for (const { name, reward_baseline } of trajectories)
          if (name === "speller") expect(reward_baseline).toBeTypeOf("number");
      expect(metrics).toMatchObject({ "batch/groups_dropped_no_baseline": 0, "async/buffer_filtered": 0 });
    }
    expect(asked.filter(isGreedy)).toHaveLength(8 * 4 * 2);
  },
);

test("one that fails ends a run whose rollouts may not fail", async () => {
  const rollout: Rollout = (task, policy) => {
    if (policy.place.is_greedy) throw new Error("no greedy reply");
    return byLetter()(task, policy);
  };
  await expect(train(remaxRun({ workflow: { raise_on_error: true } }, { rollout }).run)).rejects.toThrow(
    /Cannot finish the rollout copy-\d+:4: no greedy reply/,
  );
});

test("a run whose greedy attempts all fail says why it trains nothing", async () => {
  const rollout: Rollout = (task, policy) => {
    if (policy.place.is_greedy) throw new Error("no greedy reply");
    return byLetter()(task, policy);
  };
  await expect(train(remaxRun({}, { rollout }).run)).rejects.toThrow(/4 groups dropped without a greedy baseline/);
});

test("an agent's own sampling parameters do not make its greedy attempt random, and no warning is shown", async () => {
  const warned: string[] = [];
  const rollout: Rollout = async (_, policy) => {
    await policy.complete("a", { temperature: 1, top_p: 0.5 });
    const body = JSON.stringify({ model: policy.model, prompt: "a", temperature: 1, top_p: 0.9 });
    const headers = { "content-type": "application/json" };
    const reply = await policy.fetch(`${policy.baseURL}/completions`, { method: "POST", headers, body });
    expect(reply.status).toBe(200);
    return 1;
  };
  const { run, asked } = remaxRun({ trainer: { total_batches: 1 } }, { rollout, warn: (it) => void warned.push(it) });
  await train(run);
  expect(asked).toHaveLength(2 * 4 * (N + 1));
  expect(asked.filter(isGreedy)).toHaveLength(2 * 4);
  expect(warned.filter((each) => each.includes("requests"))).toEqual([]);
});

test("compact filtering of the greedy attempt's ending leaves no baseline, as it leaves no rollout", async () => {
  const rollout: Rollout = async (task, policy) => {
    const trajectories = [{ name: "speller", steps: [await policy.complete(task.instruction)], reward: 1 }];
    return { trajectories, termination_reason: policy.place.is_greedy ? "timeout" : "env_done" };
  };
  const settings = { compact_filtering: { enable: true, mask_timeout: true } };
  await expect(train(remaxRun(settings, { rollout }).run)).rejects.toThrow(/without a greedy baseline/);
});

test("a reward of the greedy attempt that is not finite is refused", async () => {
  const rollout: Rollout = async (task, policy) => {
    const reward = await byLetter()(task, policy);
    return policy.place.is_greedy ? Number.NaN : reward;
  };
  await expect(train(remaxRun({}, { rollout }).run)).rejects.toThrow(
    /greedy trajectory copy-\d+:4\/0 \(speller\) as a baseline: its reward must be a finite number \(NaN\)/,
  );
});

describe("roles", () => {
  /** Two solvers and a judge; the greedy solvers earn 1 and 3, the greedy judge 5. */
  const roles: Rollout = async (task, policy) => {
    const greedy = policy.place.is_greedy === true;
    const solvers = [policy.agent("solver"), policy.agent("solver")];
    for (const solver of solvers) await solver.complete(task.instruction);
    const judge = policy.agent("judge");
    await judge.complete(task.instruction);
    const [one, two, three] = greedy ? [1, 3, 5] : [10, 20, 30];
    return { trajectories: [solvers[0]!.trajectory(one), solvers[1]!.trajectory(two), judge.trajectory(three)] };
  };
  const baselinesOf = async (settings: Partly<LoopSettings>, rollout = roles) => {
    const { run, log } = remaxRun({ ...settings, trainer: { total_batches: 1 } }, { rollout });
    await train(run);
    const { episodes = [], metrics } = log.of("train")[0]!;
    return { metrics, baselines: episodes[0]!.trajectories.map(({ reward_baseline }) => reward_baseline) };
  };

  test("each role has the greedy reward of its own, the mean where several play it", async () => {
    const { baselines, metrics } = await baselinesOf({});
    expect(baselines).toEqual([2, 2, 5]);
    expect(metrics).toMatchObject({ "reward/solver/greedy_mean": 2, "reward/judge/greedy_mean": 5 });
    expect(metrics).toMatchObject({ "advantage/solver/min": 8, "advantage/solver/max": 18, "advantage/judge/max": 25 });
  });

  test("a greedy attempt is played for a role alone, and drops no group of the others", async () => {
    const algorithm = { adv_estimator: "rloo", traj_group_adv_estimator_map: { judge: "remax" } };
    const withoutJudge: Rollout = async (task, policy) => {
      const { trajectories } = (await roles(task, policy)) as { trajectories: never[] };
      return { trajectories: policy.place.is_greedy ? trajectories.slice(0, 2) : trajectories };
    };
    const { metrics } = await baselinesOf({ algorithm }, withoutJudge);
    expect(metrics).toMatchObject({ "batch/groups_dropped_no_baseline": 4, "batch/groups_after_filter": 4 });
    expect(metrics["reward/judge/greedy_mean"]).toBeUndefined();
  });

  test.each([
    ["are compared by their index", {}, [4, 6]],
    ["are compared together where they have no names", { impute_missing_names: false }, [5, 5]],
  ])("unnamed trajectories %s", async (_, transform, expected) => {
    const unnamed: Rollout = async (task, policy) => {
      const steps = [await policy.complete(task.instruction)];
      return { trajectories: [4, 6].map((reward) => ({ steps, reward })) };
    };
    expect((await baselinesOf({ transform }, unnamed)).baselines).toEqual(expected);
  });
});

test("validation plays no greedy attempt", async () => {
  const { run, asked } = remaxRun({ trainer: { val_only: true, val_before_train: true } });
  await train(run);
  expect(asked.length).toBeGreaterThan(0);
  expect(asked.filter(({ params }) => params.temperature === 0)).toEqual([]);
});

test("no greedy attempt is played where the teacher's advantages are the only ones", () => {
  const settings = (use_task_rewards: boolean) =>
    loopSettings({
      algorithm: { adv_estimator: "remax" },
      distillation: { enabled: true, distillation_loss: { use_task_rewards } },
    });
  expect([true, false].map((use) => playsGreedy(settings(use)))).toEqual([true, false]);
});

test.each<[string, Partly<LoopSettings>, RegExp]>([
  ["advantages of each step", { stepwise_advantage: { enable: true, mode: "per_step" } }, /mode=per_step: a greedy/],
  [
    "rollouts at temperature 0",
    { rollout: { train: { temperature: 0 } } },
    /temperature=0: every rollout would be the greedy/,
  ],
])("%s are refused before anything is sampled", async (_, settings, message) => {
  const { run, asked } = remaxRun(settings);
  await expect(train(run)).rejects.toThrow(message);
  const role = { adv_estimator: "grpo", traj_group_adv_estimator_map: { copier: "remax" } };
  await expect(train(remaxRun({ ...settings, algorithm: role }).run)).rejects.toThrow(message);
  expect(asked).toEqual([]);
});

test("recorded episodes are refused: they hold no greedy attempt", async () => {
  const source: EpisodeSource = {
    state: { next: 0, pending: [] },
    resume() {},
    async stop() {},
    generate: async () => ({ value: [], metrics: {} }),
  };
  await expect(train(remaxRun({}, { source }).run)).rejects.toThrow(/Cannot estimate remax on recorded episodes/);
});

describe("a run in two parts equals one", () => {
  test.each<[string, Partly<LoopSettings>]>([
    ["synchronous", {}],
    ["with held groups", { rejection_sample: { enable: true, min_partial_solve_tasks: 2 } }],
    ["asynchronous", { async_training: { ...ASYNC.async_training, staleness_threshold: 0 } }],
    ["over a disk", { async_training: { ...ASYNC.async_training, episode_offload_dir: "folder" } }],
  ])("%s", async (_, given) => {
    const folder = mkdtempSync(join(tmpdir(), "grpu-remax-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const offloads = given.async_training?.episode_offload_dir === "folder";
    const settings = offloads
      ? { async_training: { ...given.async_training, episode_offload_dir: join(folder, "episodes") } }
      : given;
    const part = async ({ until, from }: { until?: number; from?: LoopState } = {}) => {
      const stopper = new AbortController();
      const made = remaxRun(
        { ...settings, trainer: { total_batches: 6, save_freq: 0 } },
        { tasks: { train: letterTasks(48) }, signal: stopper.signal },
      );
      const checkpoint: Checkpoint<LoopState> | undefined = from && { dir: folder, state: from };
      let saved: LoopState | undefined;
      await train({
        ...made.run,
        loggers: [made.log, { log: ({ step }) => void (step === until && stopper.abort(new Error("stop"))) }],
        checkpoints: {
          find: async () => checkpoint,
          save: async (_, { state }) => {
            saved = structuredClone(state);
            await made.backend.save(folder);
          },
        },
      });
      const steps = made.log.of("train").map(({ metrics }) => withoutTimes(metrics));
      return { steps, saved: saved!, text: made.backend.text() };
    };
    const whole = await part();
    const first = await part({ until: 3 });
    const second = await part({ from: first.saved });
    expect([...first.steps, ...second.steps]).toEqual(whole.steps);
    expect(second.text).toBe(whole.text);
    const held = whole.steps.some((each) => each["batch/groups_held"]! > 0);
    expect(held).toBe(given.rejection_sample !== undefined);
    expect(whole.steps.some((each) => (each["reward/copier/greedy_mean"] ?? 0) > 0)).toBe(true);
  });
});
