/** Parts of a run outside the stages, in figures: episodes, warm-up, the step's metrics, checkpoints, settings, pipelines. */
import { describe, expect, test } from "vitest";
import type { Backend, LossSpec, OptimParams, TrainBatch } from "../../../src/engine/contract/backend.ts";
import type { Tokenizer } from "../../../src/engine/contract/text.ts";
import { markOf } from "../../../src/train/data/dataset.ts";
import type { Step, Task } from "../../../src/train/data/types.ts";
import type { Logger } from "../../../src/train/log/logger.ts";
import { checkThinking } from "../../../src/train/loop/check_settings.ts";
import { isBest, resumeFrom, rewind, saveRun, seal } from "../../../src/train/loop/checkpoint.ts";
import type { LoopState, Run, StageContext } from "../../../src/train/loop/contract.ts";
import { checkOrder, outdatedBy } from "../../../src/train/loop/pipeline/order.ts";
import { isPublishedOrder, readPipeline } from "../../../src/train/loop/pipeline/pipeline.ts";
import { registerStage } from "../../../src/train/loop/pipeline/registered.ts";
import type { PipelineStage, Slot } from "../../../src/train/loop/pipeline/stage.ts";
import {
  bufferMetrics,
  droppedGroups,
  idleRatio,
  stalenessMetrics,
  windowMetrics,
} from "../../../src/train/loop/rollout/async_metrics.ts";
import { failedEpisode, judged, resultOf, shapeRewards, toEpisode } from "../../../src/train/loop/rollout/episode.ts";
import { GroupBuffer } from "../../../src/train/loop/rollout/group_buffer.ts";
import { SyncWindow } from "../../../src/train/loop/rollout/sync_window.ts";
import { runFrom } from "../../../src/train/loop/run.ts";
import { loopSettings, STAGE_ORDER } from "../../../src/train/loop/settings.ts";
import { supervisedBatch } from "../../../src/train/loop/sft/batch.ts";
import { packBatch } from "../../../src/train/loop/stages/batch.ts";
import { checkRewards, groupByTaskAndName } from "../../../src/train/loop/stages/transform.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import { batchSizeOf, START_STATE, taskBatch, totalSteps } from "../../../src/train/loop/state.ts";
import { performanceOf, progress } from "../../../src/train/loop/step.ts";
import { whyUntrained } from "../../../src/train/loop/untrained.ts";
import { utilisation } from "../../../src/train/loop/utilisation.ts";
import { passAtK } from "../../../src/train/loop/validate.ts";
import { warmupStep } from "../../../src/train/loop/warmup.ts";
import { anEpisode, aStep } from "../../fixtures/episodes.ts";
import { letterRun, letterTasks } from "../../fixtures/loop.ts";
import { stageContext } from "../../fixtures/stage.ts";

const task: Task = { id: "t", instruction: "", metadata: {} };
const attempt = { task, task_index: 2, rollout_index: 1 };
const plain = { gamma: 0, reward_bonus_coeff: 0 };

describe("episodes", () => {
  const steps = (rewards: readonly number[]) => rewards.map((reward) => aStep({ reward }));
  const recorded = () => [{ name: "a", steps: steps([1, 0]), reward: 1 }];

  test.each<[rewards: number[], shaping: { gamma: number; reward_bonus_coeff: number }, shaped: number[]]>([
    [[1, 2, 4], plain, [1, 2, 4]],
    [[1, 2, 4], { gamma: 0, reward_bonus_coeff: 0.5 }, [1, 2.5, 5]],
    [[1, 2, 4], { gamma: 0.5, reward_bonus_coeff: 0 }, [3, 4, 4]],
    [[1, 2, 4], { gamma: 0.5, reward_bonus_coeff: 0.5 }, [3.5, 5, 5]],
    [[3], { gamma: 0.5, reward_bonus_coeff: 1 }, [3]],
    [[3, 1], { gamma: 0.5, reward_bonus_coeff: 1 }, [2.5, -1]],
    [[], { gamma: 0.5, reward_bonus_coeff: 1 }, []],
  ])("shapeRewards(%j) with %j is %j", (rewards, shaping, shaped) => {
    const given = steps(rewards);
    const result = shapeRewards(given, shaping);
    expect(result.map(({ reward }) => reward)).toEqual(shaped);
    expect(given.map(({ reward }) => reward)).toEqual(rewards);
  });

  test.each([
    [undefined, null, undefined],
    [0.5, 0.5, true],
    [0, 0, false],
    [-1, -1, false],
    [{ reward: 0, is_correct: true }, 0, true],
    [{ reward: 1, is_correct: false }, 1, false],
  ])("the outcome %j gives all that was recorded its reward", (outcome, reward, is_correct) => {
    const result = resultOf(outcome, recorded);
    expect(result.trajectories.map((each) => each.reward)).toEqual([reward]);
    expect(result.is_correct).toBe(is_correct);
  });

  test("a result of trajectories stays as it is", () => {
    const result = { trajectories: [] };
    expect(resultOf(result, recorded)).toBe(result);
  });

  test("an outcome's metrics and signals are kept", () => {
    const outcome = { reward: 1, metrics: { m: 2 }, signals: { s: 3 } };
    expect(resultOf(outcome, recorded)).toMatchObject({ metrics: { m: 2 }, trajectories: [{ signals: { s: 3 } }] });
  });

  test.each<[endings: string[], masked: number[], episode: string]>([
    [["length", "stop"], [1, 0], "max_response_length_exceeded"],
    [["stop", "length"], [0, 1], "max_response_length_exceeded"],
    [["length", "length"], [1, 1], "max_response_length_exceeded"],
    [["stop", "stop"], [0, 0], "env_done"],
  ])("roles that end with %j are cut off one by one, and so masked", (endings, masked, reason) => {
    const tokens = { prompt_ids: [1], response_ids: [2, 3], logprobs: [-1, -1] };
    const step = (finish_reason: string) => ({ ...aStep({ reward: 1, ...tokens }), finish_reason }) as Step;
    const trajectories = endings.map((each, i) => ({
      name: `role${i}`,
      reward: 1,
      steps: [step("length"), step(each)],
    }));
    const episode = toEpisode(attempt, { trajectories }, plain);
    expect(episode.termination_reason).toBe(reason);
    const context = { settings: loopSettings({ mask_truncated_samples: true }) } as unknown as StageContext;
    const groups = checkRewards(groupByTaskAndName([episode])).value;
    const { value, metrics } = packBatch(groups, context);
    const isTrained = groups.map((_, group) =>
      [...value.trajectoryOfRow].some(
        (trajectory, row) =>
          value.groupOfTrajectory[trajectory] === group &&
          value.mask.subarray(value.offsets[row], value.offsets[row + 1]).includes(1),
      ),
    );
    expect(isTrained).toEqual(masked.map((each) => each === 0));
    const cut = masked.reduce((sum, each) => sum + each, 0);
    expect(metrics["batch/masked_overlong_trajectories"]).toBe(cut);
    expect(metrics["response_length/clip_ratio"]).toBe(cut / 2);
    // What a rollout says of its end holds for all its roles.
    const said = toEpisode(attempt, { trajectories, termination_reason: "timeout" }, plain);
    expect(
      checkRewards(groupByTaskAndName([said])).value.map(({ metadata }) => metadata[0]!.termination_reason),
    ).toEqual(["timeout", "timeout"]);
  });

  test("toEpisode() names trajectories, shapes their rewards and sums them for correctness", () => {
    const finished = (finish_reason: string) => ({ ...aStep({ reward: 1 }), finish_reason }) as Step;
    const result = { trajectories: [{ steps: steps([0, 2]) }, { name: "b", steps: [finished("length")], reward: -1 }] };
    const episode = toEpisode(attempt, result, { gamma: 1, reward_bonus_coeff: 0 });
    expect(episode).toMatchObject({
      ...{ id: "t:1", task_index: 2, rollout_index: 1, metrics: {}, metadata: {} },
      // 2 of the first one's last step, before shaping, and -1.
      ...{ is_correct: true, termination_reason: "max_response_length_exceeded" },
      trajectories: [
        { uid: "t:1/0", name: "", reward: null, steps: [{ reward: 2 }, { reward: 2 }] },
        { uid: "t:1/1", name: "b", reward: -1 },
      ],
    });
    const stopped = { trajectories: [{ steps: [finished("stop")], reward: 0 }] };
    expect(toEpisode(attempt, stopped, plain)).toMatchObject({ is_correct: false, termination_reason: "env_done" });
    const given = {
      ...result,
      is_correct: false,
      termination_reason: "timeout",
      metrics: { a: 1 },
      metadata: { b: 2 },
    };
    expect(toEpisode(attempt, given as typeof result, plain)).toMatchObject({
      ...{ is_correct: false, termination_reason: "timeout", metrics: { a: 1 }, metadata: { b: 2 } },
    });
    expect(toEpisode(attempt, { trajectories: [] }, plain)).toMatchObject({
      ...{ is_correct: false, termination_reason: "env_done" },
    });
    expect(toEpisode(attempt, { trajectories: [{ steps: [] }] }, plain).is_correct).toBe(false);
  });

  test("a failed attempt's episode says why", () => {
    expect(failedEpisode(attempt, new Error("broke"))).toEqual({
      ...{ ...attempt, id: "t:1", trajectories: [], termination_reason: "error", is_correct: false },
      ...{ metrics: {}, metadata: { error: "Error: broke" } },
    });
  });

  test("a judgement fills in what an episode lacks", () => {
    const [made] = anEpisode().trajectories;
    const trajectories = [
      { ...made!, reward: null, signals: { own: 1, both: 1 } },
      { ...made!, reward: 0.25 },
    ];
    const episode = anEpisode({ trajectories, is_correct: false, metrics: { a: 1, b: 1 } });
    const result = judged(episode, { reward: 0.5, metrics: { b: 2 }, signals: { both: 2, new: 2 } });
    expect(result).toMatchObject({ is_correct: true, metrics: { a: 1, b: 2 } });
    expect(result.trajectories.map(({ reward, signals }) => [reward, signals])).toEqual([
      [0.5, { both: 1, new: 2, own: 1 }],
      [0.25, { both: 2, new: 2 }],
    ]);
    const bare = judged(anEpisode(), { reward: 0 });
    expect(bare.is_correct).toBe(false);
    expect(bare.trajectories[0]).not.toHaveProperty("signals");
    expect(judged(episode, { reward: 1, is_correct: false }).is_correct).toBe(false);
    expect(judged(episode, { reward: 1 }).trajectories[0]!.signals).toEqual({ own: 1, both: 1 });
  });
});

describe("metrics of asynchronous training", () => {
  test("staleness, window and buffer", async () => {
    const group = (version: number) => ({ number: 0, version, episodes: [], unfinished: 0 });
    expect(stalenessMetrics([group(3), group(1), group(3)], 4)).toEqual({
      "async/staleness_mean": 5 / 3,
      "async/staleness_min": 1,
      "async/staleness_max": 3,
      "async/groups_consumed": 3,
    });
    const window = new SyncWindow({ batchSize: 3, staleness_threshold: 0.5, trigger_parameter_sync_step: 2 });
    window.sync();
    for (let i = 0; i < 7; i++) window.dispatch();
    window.consume(3);
    expect(windowMetrics(window)).toEqual({
      "async/dispatched_since_sync": 3,
      "async/quota_used": 7,
      "async/in_flight_groups": 4,
      "async/steps_since_sync": 1,
      "async/max_rollout_quota": 9,
      "async/total_syncs": 0,
    });
    const buffer = new GroupBuffer(null);
    for (const number of [4, 5, 6]) {
      const started = buffer.start(number, { version: 0, attempts: 1 });
      if (number < 6) await buffer.add(started, 0, anEpisode());
    }
    await buffer.take(1);
    expect(bufferMetrics(buffer)).toEqual({
      "async/buffer_qsize": 1,
      "async/buffer_pending": 1,
      "async/buffer_consumed": 1,
    });
  });

  test("the trainer's idle share, and what the filters dropped", () => {
    expect(idleRatio({ "time/buffer_wait": 1, "time/step": 4 })).toEqual({ "async/trainer_idle_ratio": 0.25 });
    for (const metrics of [{ "time/step": 4 }, { "time/buffer_wait": 1 }, { "time/buffer_wait": 1, "time/step": 0 }])
      expect(idleRatio(metrics as unknown as Record<string, number>)).toEqual({});
    const [before, after] = ["batch/groups_before_filter", "batch/groups_after_filter"];
    expect(droppedGroups({ [before]: 5, [after]: 3 })).toBe(2);
    expect(droppedGroups({ [before]: 5 })).toBe(0);
    expect(droppedGroups({ [after]: 5 })).toBe(0);
  });
});

describe("warm-up", () => {
  /** Letters as tokens; `<` stands for the start. */
  const tokenizer = {
    vocabSize: 99,
    eosTokenIds: [7, 8],
    encode: (text: string, { addSpecialTokens = true } = {}) => [
      ...(addSpecialTokens ? [60] : []),
      ...[...text].map((letter) => letter.charCodeAt(0)),
    ],
    decode: (ids: readonly number[]) => String.fromCharCode(...ids),
  } as unknown as Tokenizer;

  async function run(
    warmup: object,
    { examples = [{ prompt: "a", response: "bc" }], at = 0, ...more } = {} as {
      examples?: readonly { prompt: string; response: string }[];
      at?: number;
      eos?: number[];
    },
  ) {
    const batches: TrainBatch[] = [];
    const losses: LossSpec[] = [];
    const params: OptimParams[] = [];
    const backend = {
      name: "fake",
      tokenizer: { ...tokenizer, eosTokenIds: more.eos ?? [7, 8] },
      model: { eosTokenIds: [9] },
      forwardBackward: async (batch: TrainBatch, loss: LossSpec) => {
        batches.push(batch);
        losses.push(loss);
        return { "actor/pg_loss": 2, "actor/entropy": 1 };
      },
      optimStep: async (it: OptimParams) => {
        params.push(it);
        return { "actor/grad_norm": 3 };
      },
    } as unknown as Backend;
    const logged: Parameters<Logger["log"]>[0][] = [];
    const loggers = [{ log: (record: Parameters<Logger["log"]>[0]) => void logged.push(record) }];
    const settings = loopSettings({ warmup: { batch_size: 1, ...warmup }, training: { seed: 3, beta1: 0.5 } });
    const state = await warmupStep({ backend, settings, loggers, examples } as unknown as Run, {
      ...START_STATE,
      warmup: at,
    });
    return { state, batch: batches[0]!, loss: losses[0]!, params: params[0]!, logged: logged[0]! };
  }

  test("an example trains on its response and the end token, at temperature 1", async () => {
    const { batch, loss, state, logged, params } = await run({ steps: 40 });
    expect(batch).toEqual({
      offsets: Uint32Array.of(0, 5),
      tokens: Uint32Array.of(60, 97, 98, 99, 7),
      mask: Uint32Array.of(0, 0, 1, 1, 1),
      weights: Float32Array.of(0, 0, 1, 1, 1),
      advantages: { level: "row", values: Float32Array.of(1) },
    });
    expect(loss).toEqual({
      ...{ name: "cross_entropy", loss_agg_mode: "token-mean", settings: {}, entropy_coeff: 0, temperature: 1 },
    });
    expect(state.warmup).toBe(1);
    expect(params.beta1).toBe(0.5);
    expect(logged).toMatchObject({ phase: "warmup", step: 1, totalSteps: 40 });
    expect(logged.metrics).toMatchObject({ "warmup/loss": 2, "warmup/entropy": 1, "warmup/grad_norm": 3 });
    const { "time/step": seconds, "perf/throughput": speed } = logged.metrics;
    expect(speed! * seconds!).toBeCloseTo(5, 6);
    expect(seconds).toBeLessThan(10);
  });

  test("the end token is the tokenizer's first, else the model's", async () => {
    expect((await run({ steps: 1 }, { eos: [] })).batch.tokens.at(-1)).toBe(9);
  });

  // A rise over 20 steps, a constant half, a linear fall to a twentieth.
  test.each([
    [100, 0, 1 / 20],
    [100, 9, 0.5],
    [100, 19, 1],
    [100, 50, 1],
    [100, 51, 0.98],
    [100, 75, 0.5],
    [100, 97, 0.06],
    [100, 98, 0.05],
    [100, 99, 0.05],
    [4, 0, 0.25],
    [4, 2, 0.75],
    [4, 3, 0.5],
    [1, 0, 1],
  ])("of %i steps, step %i takes %f of the learning rate", async (steps, at, scale) => {
    const { params } = await run({ steps, learning_rate: 2 }, { at });
    expect(params.learning_rate).toBeCloseTo(2 * scale, 12);
  });

  test("batches are drawn anew for each step, from the first `examples`", async () => {
    const examples = [..."abcdefghij"].map((letter) => ({ prompt: letter, response: "x" }));
    const drawn = async (at: number, limit: number | null) => {
      const { batch } = await run({ steps: 9, batch_size: 40, examples: limit }, { examples, at });
      expect(batch.offsets).toHaveLength(41);
      return String.fromCharCode(...batch.tokens.filter((token) => token >= 97 && token < 120));
    };
    expect(new Set(await drawn(0, null)).size).toBe(10);
    expect([...new Set(await drawn(0, 3))].sort().join("")).toBe("abc");
    expect(new Set(await drawn(0, 99)).size).toBe(10);
    expect(await drawn(0, null)).toBe(await drawn(0, null));
    expect(await drawn(0, null)).not.toBe(await drawn(1, null));
  });

  test("rows of any length: nothing predicts a first token", () => {
    const rows = [
      { ids: [5, 6], mask: [1, 1] },
      { ids: [], mask: [] },
      { ids: [7], mask: [1] },
    ];
    const { offsets, mask, weights, advantages } = supervisedBatch(rows);
    expect([...offsets]).toEqual([0, 2, 2, 3]);
    expect([...mask]).toEqual([0, 1, 0]);
    expect([...weights!]).toEqual([0, 1, 0]);
    expect([...advantages.values]).toEqual([1, 1, 1]);
  });

  test("is refused without examples, and without a tokenizer", async () => {
    await expect(run({ steps: 1 }, { examples: [] })).rejects.toThrow(/no worked examples.*\(warmup\.steps\)\.$/);
    const settings = loopSettings();
    const parts = { backend: { name: "fake" }, settings, loggers: [], examples: [] } as unknown as Run;
    await expect(warmupStep(parts, START_STATE)).rejects.toThrow(
      "the backend fake has no tokenizer. Set warmup.steps=0.",
    );
  });
});

describe("a step", () => {
  test("its utilisation by phase and as a whole, without phases that did nothing", async () => {
    const phases = {
      actor: { flop: 600, tokens: 10, seconds: 2 },
      rollout: { flop: 200, tokens: 50, seconds: 1 },
      actor_infer: { flop: 0, tokens: 0, seconds: 0 },
    };
    const metrics = await utilisation({ takeWork: async () => ({ phases, peakFlops: 1000 }) }, 4);
    expect(metrics).toEqual({
      "perf/flops/actor": 300,
      "perf/mfu/actor": 0.3,
      "perf/flops/rollout": 200,
      "perf/mfu/rollout": 0.2,
      "perf/rollout_throughput": 50,
      "perf/mfu": 0.2,
    });
    const unknown = await utilisation({ takeWork: async () => ({ phases }) }, 4);
    expect(Object.keys(unknown).filter((name) => name.includes("mfu"))).toEqual([]);
    expect(unknown["perf/flops/actor"]).toBe(300);
  });

  test("the acceptance of guessed tokens as verl averages it: over sequences, those without a guess as 0", async () => {
    const of = (num_drafts: number, num_draft_tokens: number, num_accepted_tokens: number) => {
      return { num_drafts, num_draft_tokens, num_accepted_tokens };
    };
    const speculated = [of(2, 8, 2), of(1, 1, 1), of(0, 0, 0), of(4, 10, 0)];
    expect(await utilisation({ takeWork: async () => ({ phases: {}, speculated }) }, 4)).toEqual({
      "rollout/spec_accept_rate": (0.25 + 1) / 4,
      "rollout/spec_accept_length": (2 + 2 + 0 + 1) / 4,
    });
  });

  test("its throughput under verl's names, and its progress", async () => {
    const backend = {} as Backend;
    expect(await performanceOf(backend, 60, { "time/step": 4, "time/update": 2 })).toEqual({
      "perf/total_num_tokens": 60,
      "perf/time_per_step": 4,
      "perf/throughput": 15,
      "perf/update_throughput": 30,
    });
    const context = stageContext({}, { step: 3, epoch: 1, totalSteps: 12 });
    expect(progress(context)).toEqual({
      "training/global_step": 3,
      "training/epoch": 1,
      "progress/done_frac": 0.25,
    });
  });

  test.each([
    [{ trainer: { total_batches: 5 } }, 5],
    [{ trainer: { total_epochs: 3 } }, 12],
    [{ trainer: { total_epochs: 3 }, rejection_sample: { multiplier: 2 } }, 6],
    [{ trainer: { total_epochs: 1 }, async_training: { enable: true, mini_batch_size: 2 } }, 8],
    [{ trainer: { total_batches: 5, val_only: true } }, 0],
  ])("%j is %i steps", (settings, steps) => {
    expect(totalSteps(letterTasks(16), loopSettings({ data: { train_batch_size: 4 }, ...settings }))).toBe(steps);
  });

  test("its tasks follow the order, and its epoch", () => {
    const { run } = letterRun();
    const made = runFrom(run);
    expect(batchSizeOf(made.settings)).toBe(4);
    const epochs = [0, 3, 4, 7, 8].map((number) => taskBatch(made, number).epoch);
    expect(epochs).toEqual([0, 0, 1, 1, 2]);
    const ids = [0, 1, 2, 3].flatMap((number) => taskBatch(made, number).batch.map(({ id }) => id));
    expect(new Set(ids).size).toBe(16);
  });
});

describe("why a step trained nothing", () => {
  test.each([
    ["groups_dropped_uniform", "groups of equal rewards dropped"],
    ["groups_dropped_insufficient_trajs", "groups dropped as too small"],
    ["groups_rejected", "groups rejected"],
    ["groups_held", "groups held for a later step"],
    ["dropped_malformed_sequences", "trajectories dropped as malformed"],
  ])("%s", (name, what) => {
    const report = (count: number) => ({ metrics: { [`batch/${name}`]: count }, episodes: [], groups: [] });
    expect(whyUntrained(report(3))).toBe(`nothing trained: 3 ${what}`);
    expect(whyUntrained(report(0))).toBe("nothing trained: no group was left");
  });
});

test.each([
  [{ "actor/lr": 0 }, "the learning rate is 0 (actor/lr): the weights do not change"],
  [{ "actor/lr": 1e-9 }, undefined],
  [{}, undefined],
])("why an update with %j changes nothing: %s", (more, why) => {
  const group = { group_id: "a", group_role: "a", task_id: "a", metadata: [], trajectories: [] };
  expect(whyUntrained({ metrics: { "time/update": 1, ...more }, episodes: [], groups: [group] })).toBe(why);
});

test.each([
  ["linear", 9, "the learning rate is 0 (actor/lr): the weights do not change"],
  ["linear", 10, "the learning rate is 0 (actor/lr, where rLLM's lr_schedule=linear ends): the weights do not change"],
  ["cosine", 10, "the learning rate is 0 (actor/lr, where rLLM's lr_schedule=cosine ends): the weights do not change"],
  ["constant", 10, "the learning rate is 0 (actor/lr): the weights do not change"],
] as const)("why the rate of %s is 0 at step %i of 10", (lr_schedule, step, why) => {
  const group = { group_id: "a", group_role: "a", task_id: "a", metadata: [], trajectories: [] };
  const report = { metrics: { "time/update": 1, "actor/lr": 0 }, episodes: [], groups: [group] };
  const settings = loopSettings({ algorithm: { lr_schedule } });
  const context = { settings, step, totalSteps: 10 } as unknown as StageContext;
  expect(whyUntrained(report, context)).toBe(why);
});

describe("checkpoints of the loop", () => {
  const logger = (name: string | undefined, at: number) => {
    const rewound: number[] = [];
    return {
      name,
      log: () => {},
      position: async () => at,
      rewind: async (to: number) => void rewound.push(to),
      rewound,
    };
  };

  test("a sealed state has the weights' version and the position of every logger, by name or place", async () => {
    const loggers = [logger("metrics.jsonl", 70), logger(undefined, 5), { log: () => {} }];
    const state = await seal(START_STATE, { backend: { weightVersion: 9 } as Backend, loggers });
    expect(state).toEqual({ ...START_STATE, weightVersion: 9, logged: { "metrics.jsonl": 70, 1: 5, 2: 0 } });
    await rewind(loggers, { ...state, logged: { "metrics.jsonl": 7, 1: 0 } });
    expect(loggers.map((each) => "rewound" in each && each.rewound)).toEqual([[7], [0], false]);
    const [first] = loggers;
    await rewind([first!], { ...state, logged: {} });
    expect(first).toMatchObject({ rewound: [7] });
  });

  const saving = (settings: object = {}, weightVersion = 4) => {
    const saved: [string, { state: LoopState; best?: unknown }][] = [];
    const warned: string[] = [];
    const save = async (name: string, contents: { state: LoopState; best?: unknown }) =>
      void saved.push([name, contents]);
    const parts = {
      backend: { weightVersion } as Backend,
      loggers: [],
      checkpoints: { save, find: async () => undefined },
      settings: loopSettings(settings),
      warn: (message: string) => void warned.push(message),
    };
    return { parts, saved, warned };
  };

  test.each<[state: Partial<LoopState>, settings: object, name: string, best: unknown]>([
    [{ warmup: 3 }, {}, "warmup_step_3", undefined],
    [{}, {}, "global_step_0", undefined],
    [{ warmup: 3, step: 1 }, {}, "global_step_1", undefined],
    [{ step: 2, best: { step: 2, value: 0.5 } }, {}, "global_step_2", undefined],
    [
      { step: 2, best: { step: 2, value: 0.5 } },
      { training: { metric_for_best_model: "val/x" } },
      "global_step_2",
      { metric: "val/x", value: 0.5 },
    ],
    [
      { step: 3, best: { step: 2, value: 0.5 } },
      { training: { metric_for_best_model: "val/x" } },
      "global_step_3",
      undefined,
    ],
  ])("%j with %j is saved as %s", async (more, settings, name, best) => {
    const { parts, saved } = saving(settings);
    const state = { ...START_STATE, weightVersion: 4, ...more };
    await saveRun(parts, state);
    expect(saved).toEqual([[name, { state, best, write: expect.any(Function) }]]);
    expect(isBest(state)).toBe(more.best?.step === state.step);
  });

  test("weights that belong to no state are not saved, with a warning", async () => {
    const { parts, saved, warned } = saving({}, 5);
    await saveRun(parts, { ...START_STATE, step: 6, weightVersion: 4 });
    expect(saved).toEqual([]);
    expect(warned).toEqual([expect.stringMatching(/^Step 7 is not saved: /)]);
  });

  test.each<[before: { rows: number; hash: string } | undefined, warning: RegExp | undefined]>([
    [undefined, undefined],
    [markOf(letterTasks(4)), undefined],
    [{ rows: 4, hash: "other" }, /from 4 rows to rows with other content or in another order: from step 3 on/],
    [{ rows: 9, hash: "other" }, /from 9 rows to 4 rows: from step 3 on/],
  ])("resuming data of %j", async (data, warning) => {
    const { parts, warned } = saving();
    const loaded: string[] = [];
    const backend = { weightVersion: 8, load: async (dir: string) => void loaded.push(dir) } as unknown as Backend;
    const own = logger("a", 3);
    const state = { ...START_STATE, step: 2, logged: { a: 1 }, ...(data && { data }) };
    const tasks = { train: letterTasks(4) };
    const resumed = await resumeFrom({ dir: "d", state }, { ...parts, backend, loggers: [own], tasks });
    expect(loaded).toEqual(["d"]);
    expect(own.rewound).toEqual([1]);
    expect(resumed).toMatchObject({ step: 2, weightVersion: 8, logged: { a: 3 }, data: markOf(tasks.train) });
    expect(warned).toEqual(warning ? [expect.stringMatching(warning)] : []);
  });

  test("a new run cuts its logs back only where it keeps checkpoints", async () => {
    const { parts } = saving();
    const own = logger("a", 0);
    const resuming = { ...parts, loggers: [own], tasks: { train: letterTasks(4) } };
    await resumeFrom(undefined, { ...resuming, checkpoints: undefined });
    expect(own.rewound).toEqual([]);
    const state = await resumeFrom(undefined, resuming);
    expect(own.rewound).toEqual([0]);
    expect(state).toEqual({ ...START_STATE, weightVersion: 4, logged: { a: 0 }, data: markOf(letterTasks(4)) });
  });
});

describe("what a run is made of", () => {
  const { run } = letterRun();
  test.each([
    [{ backend: undefined }, /^Cannot train without backend: .*\(backend\)\.$/],
    [{ backend: {} }, /^Cannot train without backend/],
    [{ tasks: undefined }, /^Cannot train without tasks/],
    [{ tasks: { train: letterTasks(4), val: 3 } }, /^Cannot train without tasks/],
    [{ rollout: "x" }, /^Cannot train without rollout/],
  ])("%j is refused", (change, message) => {
    expect(() => runFrom({ ...run, ...change } as never)).toThrow(message);
  });

  test("its parts have defaults, and warnings are passed on once, to every logger", () => {
    const warned: string[] = [];
    const loggers = [1, 2].map((i) => ({ log: () => {}, warn: (text: string) => void warned.push(`${i} ${text}`) }));
    const heard: ((message: string) => void)[] = [];
    const backend = Object.assign(Object.create(run.backend), { onWarning: (warn: () => void) => heard.push(warn) });
    const made = runFrom({
      ...run,
      backend,
      tasks: { train: letterTasks(4) },
      loggers: [...loggers, { log: () => {} }],
    });
    expect(made.tasks.val).toEqual([]);
    expect(made.examples).toEqual([]);
    expect(made.signal.aborted).toBe(false);
    expect(made.generation).toBeUndefined();
    for (const message of ["a", "a", "b"]) heard[0]!(message);
    made.warn("b");
    expect(warned).toEqual(["1 a", "2 a", "1 b", "2 b"]);
  });

  test.each([
    [{ disable_thinking: false }, undefined, true],
    [{ disable_thinking: true }, undefined, false],
    [{ disable_thinking: true }, "{{ x }}", false],
    [{ disable_thinking: true }, "{% if enable_thinking %}", true],
  ])("%j with the template %j: %j", (settings, chatTemplate, isFine) => {
    const check = () => checkThinking(loopSettings(settings), { chatTemplate } as unknown as Tokenizer);
    if (isFine) expect(check).not.toThrow();
    else expect(check).toThrow(/^Cannot disable thinking: .*\(rllm\.disable_thinking\)\.$/);
    if (!isFine) expect(() => checkThinking(loopSettings(settings), undefined)).toThrow("Cannot disable thinking");
  });
});

describe("settings", () => {
  test.each<[given: unknown, message: RegExp]>([
    [{ rolout: {} }, /^Cannot set rolout: there is no such setting\. Did you mean rollout \(rolout\)\?$/],
    [
      { rollout: { m: 1 } },
      /^Cannot set rollout\.m: there is no such setting\. (Did you mean n \(rollout\.m\)\?|Names: .*)/,
    ],
    [{ trainer: { zzzzzzzzzz: 1 } }, /^Cannot set trainer\.zzzzzzzzzz: there is no such setting\. Names: .*, .*\./],
    [{ rollout: 3 }, /^Cannot set rollout: it takes an object \(3\) \(rollout\)\.$/],
    [3, /^Cannot set settings: it takes an object \(3\) \(settings\)\.$/],
    [{ rollout: { train: { toString: 1 } } }, /^Cannot set rollout\.train\.toString: there is no such setting/],
    [{ rollout: { n: "many" } }, /rollout\.n/],
  ])("%j is refused", (given, message) => {
    expect(() => loopSettings(given as object)).toThrow(message);
  });

  test("a part that is undefined has its default; a setting that is a dict takes any name", () => {
    expect(loopSettings({ rollout: undefined, trainer: { total_batches: undefined } })).toEqual(loopSettings());
    const map = { any_name: "rloo" };
    expect(loopSettings({ algorithm: { traj_group_adv_estimator_map: map } }).algorithm).toMatchObject({
      traj_group_adv_estimator_map: map,
    });
  });
});

describe("pipelines", () => {
  const stage = (name: string, needs: Slot[], gives: Slot[], uses?: Slot[]): PipelineStage => {
    return { name, needs, gives, ...(uses && { uses }), run: async () => ({}) };
  };

  test.each<[what: PipelineStage, dropped: Slot[]]>([
    [stage("a", [], []), []],
    [
      stage("generate", ["tasks"], ["episodes", "eligible"]),
      ["episodes", "eligible", "groupings", "groups", "rows", "logprobs", "advantages"],
    ],
    [stage("filter", ["eligible"], ["eligible"]), []],
    [stage("used", [], ["groups"], ["groups"]), []],
    [stage("batch", ["groups"], ["rows"]), ["rows", "logprobs", "advantages"]],
    [stage("process", ["rows"], ["logprobs"]), ["logprobs"]],
    [stage("hold", ["groups"], ["held"]), ["held"]],
    [stage("mixed", ["groups"], ["groups", "rows"]), ["rows", "logprobs", "advantages"]],
  ])("outdatedBy(%j)", (it, dropped) => {
    expect([...outdatedBy(it)].sort()).toEqual([...dropped].sort());
  });

  const [generate, transform, batch] = [
    stage("generate", ["tasks"], ["episodes", "eligible"]),
    stage("transform", ["eligible"], ["groups"]),
    stage("batch", ["groups"], ["rows"]),
  ];
  const read = (name: string, ...needs: Slot[]) => stage(name, needs, []);

  test.each<[stages: PipelineStage[], why: string]>([
    [
      [generate, batch, transform, read("r", "rows")],
      "batch needs groups, which transform gives only later: put transform before it",
    ],
    [
      [generate, transform, generate, batch, read("r", "rows")],
      "batch needs groups, which generate drops: put transform between them",
    ],
    [
      [generate, transform, batch, generate, transform, batch, generate, read("r", "rows")],
      "r needs rows, which generate drops: put batch between them",
    ],
    [[generate, transform, read("r", "rows")], "r needs rows, which no stage before it gives: put batch before it"],
    [[generate, transform], "nothing after transform reads what it gives (groups): move it up, or remove it"],
    [
      [generate, batch, stage("late", ["rows"], ["groups"], ["groups"])],
      "batch needs groups, which late gives only later: put late before it",
    ],
  ])("a list that cannot work is refused: case %#", (stages, why) => {
    const check = () => checkOrder(stages);
    expect(check).toThrow(`Cannot run pipeline.stages: ${why}.\nThe stages, with what each needs -> gives:\n`);
    expect(check).toThrow(/\n {2}generate: tasks -> episodes, eligible\n/);
  });

  test("a list may end with a stage that changes what is held, and readers may read what they need or use", () => {
    expect(() => checkOrder([generate, transform, stage("hold", ["groups"], ["held"])])).not.toThrow();
    expect(() => checkOrder([generate, stage("uses", [], [], ["episodes"])])).not.toThrow();
    expect(() => checkOrder([stage("a", [], []), generate, stage("u", ["tasks"], [], ["groups"])])).toThrow(
      "  u: tasks, groups? -> -",
    );
  });

  test("the published order is that list and no other", () => {
    expect(isPublishedOrder(STAGE_ORDER)).toBe(true);
    expect(isPublishedOrder(STAGE_ORDER.slice(1))).toBe(false);
    expect(isPublishedOrder([...STAGE_ORDER, "log"])).toBe(false);
    expect(isPublishedOrder([...STAGE_ORDER].reverse())).toBe(false);
  });

  test("names are read with spaces around them, and a registered stage after the built-in ones", () => {
    registerStage({ name: "test-count", needs: ["metrics"], gives: [], run: () => undefined });
    const names = [...STAGE_ORDER.map((name) => ` ${name} `), " test-count "];
    expect(readPipeline(names, STAGES).map(({ name }) => name)).toEqual([...STAGE_ORDER, "test-count"]);
    expect(() => readPipeline(["tset-count"], STAGES)).toThrow(/nearest: test-count.*\(pipeline\.stages\)\.$/);
    expect(() => readPipeline(["twice(update)"], STAGES)).toThrow(/Cannot use the wrapper "twice"/);
  });
});

test.each([
  [1, 0, 0, 0],
  [1, 4, 1, 0.25],
  [2, 4, 0, 0],
  [2, 4, 1, 0.5],
  [2, 4, 3, 1],
  [4, 4, 1, 1],
  [8, 4, 0, 0],
  [8, 4, 1, 1],
])("pass@%i of %i attempts with %i correct is %f", (k, attempts, correct, expected) => {
  expect(passAtK(k, { attempts, correct })).toBeCloseTo(expected, 12);
});
