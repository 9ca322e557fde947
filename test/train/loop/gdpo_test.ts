/** GDPO in the loop: components of a reward reach the estimator, by whatever way a rollout is judged. */
import { describe, expect, test } from "vitest";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../src/engine/algorithm/advantage/host.ts";
import type { Advantages, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { offsetsOf } from "../../../src/engine/packing/offsets.ts";
import type { Task } from "../../../src/train/data/types.ts";
import { checkSettings } from "../../../src/train/loop/check_settings.ts";
import type { AdvantageOptions, EstimateAdvantages, TrainOptions } from "../../../src/train/loop/contract.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../src/train/loop/settings.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { train } from "../../../src/train/loop/train.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { answer, type Evaluation, replyText, singleTurn, Termination } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

const KEYS = ["accuracy", "length"];
const WEIGHTS = [1, 0.25];
const GDPO = { adv_estimator: "gdpo", gdpo_reward_keys: KEYS, gdpo_reward_weights: WEIGHTS };

/** The reward tells both of its components. */
function judge(response: string, task: Task): Evaluation {
  const components = { accuracy: exactMatch(response, task), length: response.length };
  return { reward: 100 * components.accuracy + components.length, components };
}

async function run(options: Partial<TrainOptions>, settings: Partly<LoopSettings> = {}) {
  const estimated: { rewards: Float32Array; groups: Uint32Array; options: AdvantageOptions; given: Advantages }[] = [];
  const estimate: EstimateAdvantages = async (rewards, groups, it) => {
    const given = await estimateAdvantages(rewards, groups, it);
    estimated.push({ rewards, groups, options: it, given });
    return given;
  };
  const { run, backend, log } = letterRun({
    estimate: Object.assign(estimate, { check: estimateAdvantages.check }),
    ...options,
  });
  const batches: TrainBatch[] = [];
  const update = backend.forwardBackward.bind(backend);
  backend.forwardBackward = (batch, loss) => {
    batches.push(batch);
    return update(batch, loss);
  };
  const merged = {
    ...LETTER_SETTINGS,
    trainer: { total_batches: 1, test_freq: -1, val_before_train: false, save_freq: -1 },
    algorithm: GDPO,
    ...settings,
  };
  await train({ ...run, settings: merged });
  return { batches, log, estimated };
}

describe("a step trains on what the estimator makes of the components", () => {
  test.each<[string, Partial<TrainOptions>]>([
    ["of a reward", { rollout: singleTurn("copier", judge) }],
    ["that a rollout returns", { rollout: async (task, policy) => judge(replyText(await answer(task, policy)), task) }],
    [
      "of an evaluator",
      {
        rollout: async (task, policy) => void (await answer(task, policy.agent("copier"))),
        evaluate: (task, { trajectories }) => judge(replyText(trajectories[0]!.steps[0]!), task),
      },
    ],
    [
      "that come as signals",
      {
        rollout: async (task, policy) => {
          const copier = policy.agent("copier");
          const { reward, components } = judge(replyText(await answer(task, copier)), task);
          return { trajectories: [copier.trajectory(reward, { signals: components })] };
        },
      },
    ],
  ])("%s", async (_, options) => {
    const { batches, log, estimated } = await run(options);
    const [{ rewards, groups, options: it, given }] = estimated as [(typeof estimated)[number]];
    const of = {
      accuracy: Array.from(rewards, (reward) => Math.floor(reward / 100)),
      length: Array.from(rewards, (reward) => reward % 100),
    };
    expect(new Set([...of.accuracy, ...of.length]).size).toBeGreaterThan(2);
    expect(it.components).toEqual({
      accuracy: Float32Array.from(of.accuracy),
      length: Float32Array.from(of.length),
    });
    const lengths = [...it.lengths!];
    const batch = {
      offsets: offsetsOf(lengths),
      mask: new Uint32Array(lengths.reduce((sum, length) => sum + length, 0)).fill(1),
      groups: packGroups(groups, 4),
      scores: rewards,
      rewardComponents: of,
    };
    const settings = { gdpo_reward_keys: KEYS, gdpo_reward_weights: WEIGHTS };
    const { values } = advantages(batch, "gdpo", settings);
    expect([...given.values]).toEqual([...Float32Array.from(values)]);
    expect([...values]).not.toEqual([...advantages(batch, "gdpo", { gdpo_reward_keys: KEYS }).values]);
    expect([...batches[0]!.advantages.values]).toEqual([...given.values]);
    const { metrics } = log.of("train")[0]!;
    for (const [key, each] of Object.entries(of)) {
      expect(metrics[`gdpo/${key}/mean`]).toBeCloseTo(each.reduce((sum, value) => sum + value, 0) / each.length, 6);
      expect(metrics[`gdpo/${key}/max`]).toBe(Math.max(...each));
      expect(metrics[`gdpo/${key}/min`]).toBe(Math.min(...each));
      expect(metrics[`gdpo/${key}/std`]).toBeGreaterThan(0);
    }
  });
});

test("a trajectory without a component ends the run, and the error names both", async () => {
  const rollout = singleTurn("copier", (response) => ({ reward: 1, components: { accuracy: response.length } }));
  await expect(run({ rollout })).rejects.toThrow(
    /Cannot estimate gdpo with the trajectory copy-\d+:\d\/0 \(copier\): its reward has no finite component "length" \(it has accuracy\)\. .*\(algorithm\.gdpo_reward_keys\)/,
  );
  await expect(run({ rollout: singleTurn("copier", () => 1) })).rejects.toThrow(/component "accuracy" \(it has none\)/);
});

test.each([[{ a: Number.NaN }], [{ a: "1" }], [{ a: null }], [[1]], ["a"], [null]])(
  "components %j are no components",
  async (components) => {
    const rollout = singleTurn("copier", () => ({ reward: 1, components }) as never);
    await expect(run({ rollout }, { algorithm: {} })).rejects.toThrow(
      /Cannot use a judgement: its components must be finite numbers by name/,
    );
  },
);

test("an attempt that ends before it is judged counts 0 in each, as its reward does", async () => {
  let attempts = 0;
  const rollout: TrainOptions["rollout"] = async (task, policy) => {
    const copier = policy.agent("copier");
    const { length } = replyText(await answer(task, copier));
    if (attempts++ % 4 === 0) throw new Termination("timeout");
    return { trajectories: [copier.trajectory(1, { signals: { accuracy: 1, length } })] };
  };
  const { log } = await run({ rollout });
  expect(log.of("train")[0]!.metrics["gdpo/accuracy/mean"]).toBe(0.75);
});

describe("before the run", () => {
  const check = (settings: Partly<LoopSettings>) => () => checkSettings(loopSettings(settings), estimateAdvantages);

  test.each<[Partly<LoopSettings>, RegExp]>([
    [{ algorithm: { adv_estimator: "gdpo" } }, /algorithm\.gdpo_reward_keys names no rewards/],
    [{ algorithm: { ...GDPO, gdpo_reward_keys: [] } }, /names no rewards/],
    [{ algorithm: { ...GDPO, gdpo_reward_keys: ["a", "a"] } }, /a list of different names \(\["a","a"\]\)/],
    [{ algorithm: { ...GDPO, gdpo_reward_keys: "accuracy" } }, /a list of different names \("accuracy"\)/],
    [{ algorithm: { ...GDPO, gdpo_reward_weights: [1] } }, /a finite number for each of the 2 rewards .*\(\[1\]\)/],
    [{ algorithm: { ...GDPO, gdpo_reward_weights: [1, "2"] } }, /a finite number for each of the 2 rewards/],
    [{ algorithm: GDPO, stepwise_advantage: { enable: true, mode: "per_step" } }, /mode=per_step: the components/],
    [{ algorithm: { traj_group_adv_estimator_map: { judge: "gdpo" } } }, /names no rewards/],
  ])("%j is refused", (settings, message) => {
    expect(check(settings)).toThrow(message);
  });

  test.each<[Partly<LoopSettings>]>([
    [{ algorithm: GDPO }],
    [{ algorithm: { ...GDPO, gdpo_reward_weights: null } }],
    [{ algorithm: { adv_estimator: "gdpo", estimator_args: { gdpo_reward_keys: ["a"] } } }],
    [{ algorithm: { gdpo_reward_keys: ["a"], traj_group_adv_estimator_map: { judge: "gdpo" } } }],
  ])("%j is not", (settings) => {
    expect(check(settings)).not.toThrow();
  });
});
