/** A run whose GPU device is lost: it is opened again, and the run equals one that lost nothing, bit for bit. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { characterTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { DeviceLostError, RemoteError } from "../../../src/leaves/errors.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LoopState, TrainOptions } from "../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../src/train/loop/settings.ts";
import { train } from "../../../src/train/loop/train.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { singleTurn } from "../../../src/train/task/rollout.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { LETTERS, letterTasks, MemoryLogger } from "../../fixtures/loop.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const SETTINGS = {
  data: { train_batch_size: 2 },
  rollout: { n: 4, train: { max_tokens: 2 }, val: { max_tokens: 2 } },
  trainer: { total_batches: 3, test_freq: 2, save_freq: 2 },
  training: { learning_rate: 0.02, seed: 1 },
  algorithm: { kl_beta: 0.01 },
} satisfies Partly<LoopSettings>;
const ALL_WEIGHTS: LanguageModelOptions = {};
const LORA = { lora: { rank: 2, alpha: 4, targets: ["q_proj", "v_proj", "down_proj"] } };

type Call = "sample" | "logprobs" | "forwardBackward" | "optimStep" | "save" | "keep";
interface Loss {
  readonly at: Call;
  /** Which calls of that name lose the device, from 1. */
  readonly calls: readonly number[];
}

const folders: string[] = [];
afterEach(async () => {
  vi.restoreAllMocks();
  await Promise.all(folders.splice(0).map((dir) => rm(dir, { recursive: true })));
});

/** Trains a small model, losing the device where `losses` says. */
async function run(
  losses: readonly Loss[],
  {
    model: options = {},
    keeps = true,
    resumeMode = "auto",
    ...more
  }: Partial<TrainOptions> & { model?: LanguageModelOptions; keeps?: boolean; resumeMode?: "auto" | "disable" } = {},
) {
  const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 26 }))!;
  const tokenizer = characterTokenizer(LETTERS);
  const shape = { ...SMALL_MODEL, vocabSize: tokenizer.vocabSize, eosTokenIds: [...tokenizer.eosTokenIds] };
  const make = () => LanguageModel.create(device, shape, { seed: 3, ...options });
  const backend = new LocalBackend({ model: make(), remake: async () => make(), tokenizer });
  if (!keeps) backend.keep = async () => {};
  for (const { at, calls } of losses) {
    const call = backend[at].bind(backend) as (...args: unknown[]) => Promise<never>;
    let count = 0;
    backend[at] = (...args: unknown[]) => {
      const result = call(...args);
      if (calls.includes(++count)) device.gpuDevice.destroy();
      return result;
    };
  }
  const dir = await mkdtemp(join(tmpdir(), "grpu-lost-"));
  folders.push(dir);
  const log = new MemoryLogger();
  const warnings: string[] = [];
  const outcome = await train({
    backend,
    tasks: { train: letterTasks(8), val: letterTasks(4) },
    rollout: singleTurn("copier", exactMatch),
    loggers: [log],
    checkpoints: new FolderCheckpoints<LoopState>(dir, { resumeMode }),
    warn: (message) => warnings.push(message),
    settings: SETTINGS,
    ...more,
  });
  const weights = [...(await backend.languageModel.trainable.read())].map(([name, data]) => [name, [...data]]);
  const records = log.records.map(({ phase, step, metrics }) => ({ phase, step, metrics: untimed(metrics) }));
  const { step, validated, weightVersion } = outcome.state;
  const live = device.memory.live;
  backend.close();
  return {
    weights,
    records,
    state: { step, validated, weightVersion },
    isComplete: outcome.isComplete,
    warnings,
    live,
  };
}

/** Without times, and without the counts of asynchronous generation, which begin again as after a restart of the process. */
function untimed(metrics: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => !/^(time|perf|async)\//.test(name)));
}

/** Time passes so quickly that every step is kept. */
function keepEachStep(): void {
  const now = performance.now.bind(performance);
  let passed = 0;
  vi.spyOn(performance, "now").mockImplementation(() => {
    passed += 300;
    return now() + passed;
  });
}

describe.skipIf(!gpuDevice)("a lost device", () => {
  interface Case {
    readonly when: string;
    readonly losses: readonly Loss[];
    readonly model?: LanguageModelOptions;
    readonly keep?: () => void;
  }
  const cases: readonly Case[] = [
    { when: "while sampling", losses: [{ at: "sample", calls: [3] }] },
    { when: "while scoring", losses: [{ at: "logprobs", calls: [2] }], keep: keepEachStep },
    { when: "in the gradient of a late step", losses: [{ at: "forwardBackward", calls: [3] }], keep: keepEachStep },
    { when: "while a checkpoint is written", losses: [{ at: "save", calls: [2] }] },
    { when: "while the state is kept", losses: [{ at: "keep", calls: [1, 3] }], keep: keepEachStep },
    {
      when: "in the optimiser's step of an adapter",
      losses: [{ at: "optimStep", calls: [2] }],
      model: LORA,
      keep: keepEachStep,
    },
    {
      when: "at several places, with an adapter",
      losses: [
        { at: "sample", calls: [2] },
        { at: "optimStep", calls: [3] },
      ],
      model: LORA,
    },
  ];
  const whole = new Map<LanguageModelOptions, ReturnType<typeof run>>();
  const undisturbed = (model: LanguageModelOptions) => {
    const known = whole.get(model) ?? run([], { model });
    whole.set(model, known);
    return known;
  };

  test.each(cases)("$when", { timeout: 120_000 }, async ({ losses, model = ALL_WEIGHTS, keep }) => {
    const expected = await undisturbed(model);
    keep?.();
    const { warnings, ...lossy } = await run(losses, { model });
    expect({ ...lossy, warnings: [] }).toEqual(expected);
    expect(warnings.length).toBeGreaterThanOrEqual(2);
    expect(warnings[0]).toMatch(/^The GPU device was lost after step \d \(.+\)\. It is opened again, loss 1 of/);
    expect(warnings[1]).toMatch(/^The GPU device is open again\. The run continues after step \d\.$/);
  });

  test("a state that is too large to keep: the run continues from the last checkpoint", async () => {
    const expected = { ...(await undisturbed(ALL_WEIGHTS)), warnings: undefined };
    const late = await run([{ at: "forwardBackward", calls: [3] }], { keeps: false });
    expect(late.warnings[1]).toMatch(/continues after step 2\.$/);
    expect({ ...late, warnings: undefined }).toEqual(expected);
    const disabled = await run([{ at: "forwardBackward", calls: [3] }], { keeps: false, resumeMode: "disable" });
    expect(disabled.warnings[1]).toMatch(/continues after step 2\.$/);
    const early = await run([{ at: "sample", calls: [2] }], { keeps: false, checkpoints: undefined });
    expect(early.warnings[1]).toMatch(/continues after step 0\.$/);
    expect({ ...early, warnings: undefined }).toEqual(expected);
  });

  test("asynchronous generation starts again with the tasks that were not trained on", async () => {
    const settings = {
      ...SETTINGS,
      async_training: { enable: true, mini_batch_size: 2 },
    } satisfies Partly<LoopSettings>;
    const expected = await run([], { settings });
    const lossy = await run(
      [
        { at: "sample", calls: [3] },
        { at: "optimStep", calls: [2] },
      ],
      { settings },
    );
    expect(lossy.isComplete).toBe(true);
    expect(lossy.weights).toEqual(expected.weights);
    expect(lossy.records).toEqual(expected.records);
  });

  test("lost again and again without a further step: an error that says so", async () => {
    const losing = run([{ at: "forwardBackward", calls: [2, 3, 4, 5, 6, 7, 8] }]);
    await expect(losing).rejects.toThrow(RemoteError);
    await expect(losing).rejects.toThrow(
      /Cannot continue: the GPU device was lost 3 times in a row after step \d .*lower training\.max_tokens_per_pass/,
    );
  });

  test("without a way back the run ends with the loss", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 26 }))!;
    const tokenizer = characterTokenizer(LETTERS);
    const model = LanguageModel.create(device, { ...SMALL_MODEL, vocabSize: tokenizer.vocabSize }, {});
    const backend = new LocalBackend({ model, tokenizer });
    const sample = backend.sample.bind(backend);
    backend.sample = (...args) => {
      device.gpuDevice.destroy();
      return sample(...args);
    };
    const tasks = { train: letterTasks(4) };
    const losing = train({ backend, tasks, rollout: singleTurn("copier", exactMatch), settings: SETTINGS });
    await expect(losing).rejects.toThrow(/cannot make it again/);
  });
});

test("the error of a loss is one that a repetition may heal", () => {
  expect(new DeviceLostError("reset")).toMatchObject({ name: "DeviceLostError", retryable: true, why: "reset" });
});
