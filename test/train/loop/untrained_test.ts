import { describe, expect, test } from "vitest";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import type { CheckpointContents } from "../../../src/train/log/checkpoint/store.ts";
import type { LoopState, TrainOptions } from "../../../src/train/loop/contract.ts";
import { RolloutFailures } from "../../../src/train/loop/rollout/failures.ts";
import { countOverlong } from "../../../src/train/loop/rollout/prompt_lengths.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { START_STATE } from "../../../src/train/loop/state.ts";
import { train } from "../../../src/train/loop/train.ts";
import { afterStep } from "../../../src/train/loop/untrained.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { type Rollout, singleTurn } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun, letterTasks } from "../../fixtures/loop.ts";

const { rollout: BATCH, ...REST } = LETTER_SETTINGS;
const SETTINGS = {
  ...REST,
  rollout: { ...BATCH, n: 2 },
  trainer: { total_batches: 5, test_freq: 0, save_freq: 0, val_before_train: false },
  workflow: { retry_limit: 1, raise_on_error: false, workflow_args: { timeout: 1e6 } },
};
const ROLLOUTS = 4 * 2;

function brokenReward(): number {
  throw new TypeError("x is undefined");
}

/** A run with its messages and its final error. */
async function ended(options: Partial<TrainOptions>) {
  const said: string[] = [];
  const made = letterRun({ settings: SETTINGS, ...options, warn: (message) => void said.push(message) });
  const error = await train(made.run).then(
    () => undefined,
    (cause: Error) => cause,
  );
  return { ...made, said, error, notes: made.log.of("train").map(({ note }) => note) };
}

const waits: Rollout = () => new Promise(() => {});
const same = singleTurn("same", () => 0.5);

/** Replies without a weight version count as older than any threshold. */
const aged: Rollout = async (task, policy) => {
  const { weight_version: _, ...step } = await policy.complete(task.instruction);
  return { trajectories: [{ steps: [step], reward: policy.place.rollout_index }] };
};
const truncated: Rollout = async (task, policy) => {
  const step = await policy.complete(task.instruction);
  const termination_reason = "max_response_length_exceeded";
  return { trajectories: [{ steps: [step], reward: policy.place.rollout_index }], termination_reason };
};
const MASKED_SETTINGS = {
  ...SETTINGS,
  training: { ...SETTINGS.training, max_off_policy_threshold: 4, max_off_policy_strategy: "mask" as const },
};
const STALE = /nothing trained: \d+ tokens masked by .*\(batch\/masked_stale_tokens\)/;
const BY_NAME = ["generate", "transform", "reject", "batch", "advantages", "update", "log"];

describe("a run that trains no group ends with the reason", () => {
  test.each<[string, Partial<TrainOptions>, RegExp]>([
    [
      "every reward throws",
      { rollout: singleTurn("broken", brokenReward) },
      new RegExp(`all ${ROLLOUTS} rollouts failed`),
    ],
    [
      "every prompt is too long",
      {
        settings: { ...SETTINGS, data: { train_batch_size: 4, max_prompt_length: 1 } },
        tasks: {
          train: letterTasks(16).map((task) => ({ ...task, instruction: "ab" })),
          val: letterTasks(8),
        },
      },
      new RegExp(`all ${ROLLOUTS} rollouts had a prompt longer than data.max_prompt_length`),
    ],
    [
      "every rollout times out",
      {
        rollout: waits,
        settings: { ...SETTINGS, workflow: { ...SETTINGS.workflow, workflow_args: { timeout: 0.01 } } },
      },
      new RegExp(`all ${ROLLOUTS} rollouts timed out`),
    ],
    [
      "every group is dropped",
      { rollout: same, settings: { ...SETTINGS, rejection_sample: { filter_uniform_groups: true } } },
      /4 groups of equal rewards dropped/,
    ],
    [
      "as steps by name",
      {
        rollout: same,
        settings: {
          ...SETTINGS,
          rejection_sample: { filter_uniform_groups: true },
          pipeline: { stages: BY_NAME },
        },
      },
      /4 groups of equal rewards dropped/,
    ],
    ["every reply is masked as too old", { rollout: aged, settings: MASKED_SETTINGS }, STALE],
    [
      "every reply is masked as too old, as steps by name",
      { rollout: aged, settings: { ...MASKED_SETTINGS, pipeline: { stages: BY_NAME } } },
      STALE,
    ],
    [
      "every reply is masked, for an estimator that averages over trained tokens",
      {
        rollout: aged,
        estimate: estimateAdvantages,
        settings: { ...MASKED_SETTINGS, algorithm: { adv_estimator: "reinforce_plus_plus" } },
      },
      STALE,
    ],
    [
      "every trajectory is masked as truncated",
      { rollout: truncated, settings: { ...SETTINGS, mask_truncated_samples: true } },
      /nothing trained: 8 trajectories masked by .*\(batch\/masked_overlong_trajectories\)/,
    ],
  ])("%s", async (_, options, why) => {
    const { error, notes } = await ended(options);
    expect(error).toMatchObject({ name: "ConfigError", kind: "code" });
    expect(error?.message).toMatch(/the last 5 steps trained no group.*raise training\.max_untrained_steps/s);
    expect(error?.message).toMatch(why);
    expect(notes).toHaveLength(5);
    for (const note of notes) expect(note).toMatch(why);
  });
});

test.each([
  [3, 3],
  [1, 1],
  [10, 5],
  [0, undefined],
])("max_untrained_steps=%i ends a run of 5 steps after %s", async (max_untrained_steps, steps) => {
  const { error, notes } = await ended({
    rollout: singleTurn("broken", brokenReward),
    settings: { ...SETTINGS, training: { ...SETTINGS.training, max_untrained_steps } },
  });
  expect(error?.message.match(/the last (\d+) steps/)?.[1]).toBe(steps === undefined ? undefined : `${steps}`);
  expect(notes).toHaveLength(steps ?? 5);
});

test("a step that trains resets the count", async () => {
  let calls = 0;
  const reward = (response: string, task: Parameters<typeof exactMatch>[1]) => {
    if (Math.floor(calls++ / ROLLOUTS) % 3 !== 2) brokenReward();
    return exactMatch(response, task);
  };
  const { error, notes } = await ended({
    rollout: singleTurn("flaky", reward),
    settings: { ...SETTINGS, training: { ...SETTINGS.training, max_untrained_steps: 3 } },
  });
  expect(error).toBeUndefined();
  expect(notes.map((note) => /all 8 rollouts failed/.test(note ?? ""))).toEqual([true, true, false, true, true]);
});

test("groups that wait for a later step do not count; equal rewards are reported", () => {
  const group = { group_id: "a", group_role: "a", task_id: "a", metadata: [], trajectories: [] };
  const report = { metrics: {}, episodes: [], groups: [] };
  const held = { groups: [group], solvePartial: 1 };
  const waiting = afterStep(START_STATE, { step: 1, held, report });
  expect(waiting).not.toHaveProperty("untrained");
  const stuck = afterStep(waiting, { step: 2, held, report });
  expect(stuck.untrained).toEqual({ steps: 1, why: "nothing trained: no group was left" });
  expect(afterStep(stuck, { step: 3, held, report: { ...report, groups: [group] } })).not.toHaveProperty("untrained");
});

describe("a run that holds its groups back", () => {
  const held = (min_partial_solve_tasks: number, training: object = {}): Partial<TrainOptions> => ({
    settings: {
      ...SETTINGS,
      training: { ...SETTINGS.training, ...training },
      rejection_sample: { enable: true, min_partial_solve_tasks },
    },
  });
  /** One of the two attempts of each task. */
  const half = (it: Partial<TrainOptions>): Partial<TrainOptions> => {
    let calls = 0;
    return { ...it, rollout: singleTurn("half", () => calls++ % 2) };
  };

  test("in every step is an error that names the setting", async () => {
    const { error, notes } = await ended(half(held(1000)));
    expect(error?.message).toMatch(
      /none of the 5 steps trained, and 20 groups are still held for a later one \(20 of rllm\.rejection_sample\.min_partial_solve_tasks=1000 tasks are partly solved\)/,
    );
    expect(notes).toHaveLength(5);
    // They are kept for a resumed run.
    const saved: LoopState[] = [];
    const save = async (_: string, { state }: CheckpointContents<LoopState>) => void saved.push(state);
    await ended({ ...half(held(1000)), checkpoints: { find: async () => undefined, save } });
    expect(saved.at(-1)!.held.groups).toHaveLength(20);
    expect((await ended(half(held(1000, { max_untrained_steps: 0 })))).error).toBeUndefined();
  });

  test("in its last steps says how many are left", async () => {
    // Four tasks a step: steps 2 and 4 train on eight, and step 5 holds four.
    const { error, said, log } = await ended(half(held(8)));
    expect(error).toBeUndefined();
    expect(log.of("train").map(({ metrics }) => metrics["batch/groups_held"])).toEqual([4, 0, 4, 0, 4]);
    expect(said.join("\n")).toMatch(/The run ended with 4 groups that rejection sampling held for a later step/);
  });
});

const FLAT = "every advantage is 0: all rewards are 0.5; rllm.rejection_sample.mode=group leaves such groups out";

test("a step with equal rewards is reported, and the run continues", async () => {
  const { error, notes } = await ended({ rollout: same });
  expect(error).toBeUndefined();
  expect(notes).toEqual(Array(5).fill(FLAT));
});

test("the first failure of a kind is shown with its stack, all are counted", async () => {
  let calls = 0;
  const reward = () => {
    if (calls++ % 2) return 1;
    if (calls % 4 === 1) throw new RangeError(`row ${calls} of the table`, { cause: new Error("the root") });
    return brokenReward();
  };
  const { said, log } = await ended({ rollout: singleTurn("broken", reward) });
  expect(said.filter((message) => /failed: TypeError: x is undefined\n +at brokenReward/.test(message))).toHaveLength(
    1,
  );
  expect(said.filter((message) => /row \d+ of the table.*caused by Error: the root/s.test(message))).toHaveLength(1);
  expect(said.filter((message) => /^\d+ tries of rollouts failed:\n {2}\d+ x /.test(message))).toHaveLength(1);
  const failed = log.of("train").map(({ metrics }) => metrics["batch/rollouts_failed"]);
  expect(failed).toEqual(Array(5).fill(4));
});

test("kinds of failure beyond twenty are only counted", () => {
  const said: string[] = [];
  const failures = new RolloutFailures((message) => void said.push(message));
  const letters = [..."abcdefghijklmnopqrstuvwxyz"];
  for (const letter of [...letters, ...letters]) failures.add(new Error(letter), "t:0");
  expect(said).toHaveLength(20);
  failures.finish();
  expect(said.at(-1)).toMatch(/^52 tries of rollouts failed:.*and 6 more kinds$/s);
});

describe("countOverlong()", () => {
  const tokenizer = byteTokenizer();
  const tasks = ["a", "aaaa", "ää", "aaaaaaaa"].map((instruction) => ({
    ...letterTasks(1)[0]!,
    instruction,
  }));
  const limits = { tokenizer, contextLength: 100, split: "train" } as const;
  test.each([
    [8, 0],
    [7, 1],
    [4, 1],
    [3, 3],
    [1, 3],
  ])("%i tokens at most leave out %i of 4", (longest, count) => {
    expect(countOverlong(tasks, { ...limits, longest })).toBe(count);
  });
  test("throws when all prompts are too long, for the setting or for the context", () => {
    expect(() => countOverlong(tasks.slice(1), { ...limits, longest: 3 })).toThrow(
      /Cannot use the train prompts: all 3 are longer than rllm\.data\.max_prompt_length \(3 tokens\)/,
    );
    expect(() => countOverlong(tasks, { ...limits, longest: 50, contextLength: 1 })).toThrow(/the model's context/);
    expect(countOverlong([], { ...limits, longest: 0 })).toBe(0);
  });
  test("counts rendered conversations, and leaves one that cannot be encoded to its rollout", () => {
    const chat = { ...tasks[0]!, messages: [{ role: "user" as const, content: "a" }] };
    const refusing = {
      ...tokenizer,
      formatChat: () => {
        throw new Error("no template");
      },
    };
    const rendered = { ...tokenizer, formatChat: () => "<user>a</user>" };
    expect(countOverlong([chat, tasks[0]!], { ...limits, tokenizer: rendered, longest: 13 })).toBe(1);
    expect(countOverlong([chat, tasks[0]!], { ...limits, tokenizer: refusing, longest: 5 })).toBe(0);
    // A template that fails for every prompt ends the run before it starts.
    expect(() => countOverlong([chat, chat], { ...limits, tokenizer: refusing, longest: 5 })).toThrow("no template");
  });
});
