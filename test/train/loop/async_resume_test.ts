/** What asynchronous generation counts: tasks, weight versions, and its own figures, also in the second part of a run. */
import { describe, expect, test } from "vitest";
import type { Backend } from "../../../src/engine/contract/backend.ts";
import type { Checkpoint } from "../../../src/train/log/checkpoint/store.ts";
import type { LoopState, TrainOptions } from "../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { type Rollout, singleTurn } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, letterRun, letterTasks } from "../../fixtures/loop.ts";

type AsyncSettings = Partial<LoopSettings["async_training"]>;

const STEPS = 6;

const settingsOf = (async_training: AsyncSettings, more: Partly<LoopSettings> = {}): Partly<LoopSettings> => ({
  ...LETTER_SETTINGS,
  rollout: { ...LETTER_SETTINGS.rollout, n: 2 },
  trainer: { total_batches: STEPS, test_freq: 0, save_freq: 0, val_before_train: false },
  ...more,
  async_training: { enable: true, mini_batch_size: 4, ...async_training },
});

/** Trains from a state up to a step, or to the end. */
async function trained(
  settings: Partly<LoopSettings>,
  { from, until, ...options }: Partial<TrainOptions> & { from?: LoopState; until?: number } = {},
) {
  const stopper = new AbortController();
  const warned: string[] = [];
  const made = letterRun({ settings, tasks: { train: letterTasks(48) }, signal: stopper.signal, ...options });
  let saved: LoopState | undefined;
  const found: Checkpoint<LoopState> | undefined = from && { dir: "", state: from };
  const { state } = await train({
    ...made.run,
    warn: (message) => void warned.push(message),
    loggers: [made.log, { log: ({ step }) => void (step === until && stopper.abort(new Error("stop"))) }],
    checkpoints: {
      find: async () => found,
      save: async (_, it) => {
        saved = structuredClone(it.state);
      },
    },
    backend: Object.assign(made.backend, { load: async () => {} }) as Backend,
  });
  const steps = made.log.of("train");
  const figures = (name: string) => steps.map(({ metrics }) => metrics[`async/${name}`]);
  const taken = steps.map(({ episodes = [] }) => [...new Set(episodes.map(({ task }) => task.id))]);
  return { state, saved: saved!, warned, taken, figures };
}

describe("a run in two parts", () => {
  test.each(["total_syncs", "buffer_consumed", "buffer_filtered"])("counts %s as one part does", async (name) => {
    const settings = settingsOf(
      {},
      { rejection_sample: { filter_uniform_groups: true }, training: { max_untrained_steps: 0 } },
    );
    const rollout: Rollout = singleTurn("same", () => 1);
    const whole = await trained(settings, { rollout });
    const first = await trained(settings, { rollout, until: 2 });
    const second = await trained(settings, { rollout, from: first.saved });
    expect([...first.figures(name), ...second.figures(name)]).toEqual(whole.figures(name));
    expect(second.figures(name).at(-1)).toBeGreaterThan(STEPS - 2);
  });

  test.each([
    [2, /2 steps took 8 tasks and would now take 4\. The run continues with task 5/],
    [8, /2 steps took 8 tasks and would now take 16\. The run continues with task 17/],
  ])("of batches of 4 and then of %i takes tasks in every step, and says so", async (mini_batch_size, message) => {
    const first = await trained(settingsOf({ staleness_threshold: 1 }), { until: 2 });
    const second = await trained(settingsOf({ mini_batch_size, staleness_threshold: 1 }), { from: first.saved });
    expect(second.taken.map((ids) => ids.length)).toEqual(Array(STEPS - 2).fill(mini_batch_size));
    expect(second.warned.join("\n")).toMatch(message);
    const same = await trained(settingsOf({ staleness_threshold: 1 }), { from: first.saved });
    expect(same.warned.join("\n")).not.toMatch(/size of a batch/);
    expect(same.taken.flat()).toHaveLength(4 * (STEPS - 2));
  });
});

test("a step with two rounds takes a batch in each, up to the last step", async () => {
  const round = ["generate", "transform", "batch", "process", "advantages", "update"];
  const seen = new Set<string>();
  const inner = singleTurn("copier", exactMatch);
  const rollout: Rollout = (task, policy) => {
    seen.add(task.id);
    return inner(task, policy);
  };
  const { taken, figures, state } = await trained(
    settingsOf({}, { pipeline: { stages: [...round, ...round, "log"] } }),
    { rollout },
  );
  expect(taken.map((ids) => ids.length)).toEqual(Array(STEPS).fill(4));
  expect(figures("buffer_consumed")).toEqual([8, 16, 24, 32, 40, 48]);
  expect(seen.size).toBe(48);
  expect(state.weightVersion).toBe(2 * STEPS);
});

test("stages that generate more than pipeline.stages names end the run with an error, not with empty steps", async () => {
  const made = letterRun({ settings: settingsOf({}), tasks: { train: letterTasks(48) } });
  const { STAGES } = await import("../../../src/train/loop/stages.ts");
  const { trainStep } = await import("../../../src/train/loop/step.ts");
  const twice: TrainOptions["step"] = async (run, state) => {
    await run.stages.generate([], { ...run, step: 0, epoch: 0, totalSteps: STEPS, isValidation: false });
    return trainStep(run, state);
  };
  await expect(train({ ...made.run, stages: STAGES, step: twice })).rejects.toThrow(
    /Cannot generate: every task of the run was taken\. A step takes 4 tasks/,
  );
});

test("an attempt knows the weights that it samples from, while training is ahead of them", async () => {
  const places: (readonly [number, number | undefined])[] = [];
  const inner = singleTurn("copier", exactMatch);
  const rollout: Rollout = async (task, policy) => {
    const { weight_version } = policy.place;
    const result = await inner(task, policy);
    places.push([weight_version, policy.steps[0]!.weight_version]);
    return result;
  };
  const ahead = { staleness_threshold: 1, trigger_parameter_sync_step: 2 };
  const { state } = await trained(settingsOf(ahead, { workflow: { n_parallel_tasks: 2 } }), { rollout });
  expect(state.weightVersion).toBe(STEPS);
  expect(new Set(places.map(([, sampled]) => sampled)).size).toBeGreaterThan(1);
  for (const [known, sampled] of places) expect(known).toBe(sampled);
});
