/** Supervised steps: rows that do not see each other, and runs that are stopped and resumed. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../../src/train/backend/local/backend.ts";
import { FolderCheckpoints } from "../../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { MetricsFile } from "../../../../src/train/log/loggers/jsonl.ts";
import type { LoopState } from "../../../../src/train/loop/contract.ts";
import { supervisedBatch } from "../../../../src/train/loop/sft/batch.ts";
import type { EncodedRow } from "../../../../src/train/loop/sft/encode.ts";
import { type SftOptions, sft } from "../../../../src/train/loop/sft/sft.ts";
import { heldOutLoss } from "../../../../src/train/loop/sft/validate.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { MemoryLogger } from "../../../fixtures/loop.ts";
import { expectResumedAsWhole, outcomeIn } from "../../../fixtures/resumed_rows.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

/** Rows of made-up tokens; about half of each row trains. */
function madeRows(lengths: readonly number[]): EncodedRow[] {
  return lengths.map((length, i) => {
    const ids = Array.from({ length }, (_, t) => 3 + ((5 * t + 7 * i + t * t) % 17));
    return { ids, mask: ids.map((_, t) => Number(t > length / 2)), file: "made.jsonl", line: i + 1 };
  });
}

function smallBackend(device: Device): LocalBackend {
  return new LocalBackend({ model: LanguageModel.create(device, SMALL_MODEL, { seed: 3 }) });
}

overDevices("packed rows", (device) => {
  test("have the losses that they have alone, bit for bit", async () => {
    const backend = smallBackend(device);
    const rows = madeRows([9, 2, 17, 5, 32, 3]);
    const logprobsOf = async (taken: readonly EncodedRow[]) => {
      const { tokens, offsets, mask } = supervisedBatch(taken);
      return (await backend.logprobs({ tokens, offsets }, { policy: "current", temperature: 1, mask })).logprobs;
    };
    const alone = await mapInOrder(rows, (row) => logprobsOf([row]));
    expect([...(await logprobsOf(rows))]).toEqual(alone.flatMap((values) => [...values]));
    expect(alone.flatMap((values) => [...values]).filter((value) => value !== 0)).toHaveLength(trainedIn(rows));
  });

  test("have a held-out loss that is the mean over all trained tokens", async () => {
    const backend = smallBackend(device);
    const rows = madeRows([9, 17, 5]);
    const signal = new AbortController().signal;
    const weighed = rows.map((row, i) => ({ ...row, weights: row.mask.map((each) => each * (i + 1)) }));
    const each = await mapInOrder(rows, (row) => heldOutLoss([row], { backend, signal }));
    const shares = rows.map((row, i) => (i + 1) * trainedIn([row]));
    const expected = sumOf(each.map((metrics, i) => metrics["val/loss"]! * shares[i]!)) / sumOf(shares);
    const measured = await heldOutLoss(weighed, { backend, signal });
    const { "val/loss": loss, "val/perplexity": perplexity, "val/mean_token_accuracy": accuracy } = measured;
    expect(loss).toBeCloseTo(expected, 12);
    expect(perplexity).toBe(Math.exp(loss!));
    const { tokens, offsets, mask } = supervisedBatch(rows);
    const { tokens: likely } = await backend.languageModel.top({ tokens, offsets }, { k: 1, policy: "current" });
    const trained = [...mask.keys()].filter((t) => mask[t] === 1);
    const hits = trained.filter((t) => likely[t - 1] === tokens[t]).length;
    expect(hits).toBeGreaterThan(0);
    expect(accuracy).toBe(hits / trained.length);
  });
});

test("a step's loss is the weighted mean over the tokens of all its rows", async () => {
  const backend = smallBackend(new CpuDevice());
  const rows = madeRows([9, 17]).map((row, i) => ({ ...row, weights: row.mask.map((each) => each * (i ? 0.25 : 2)) }));
  const log = new MemoryLogger();
  const { "val/loss": expected } = await heldOutLoss(rows, { backend, signal: new AbortController().signal });
  await sft({
    backend,
    rows: { train: rows },
    loggers: [log],
    settings: { data: { train_batch_size: 2 }, trainer: { total_batches: 1 } },
  });
  expect(log.of("train")[0]!.metrics["train/loss"]).toBeCloseTo(expected!, 5);
});

test("a step's entropy is the mean over the trained tokens, whatever they weigh", async () => {
  const entropyAt = async (weight: number) => {
    const rows = madeRows([9, 17]).map((row) => ({ ...row, weights: row.mask.map((each) => each * weight) }));
    const log = new MemoryLogger();
    const settings = { data: { train_batch_size: 2 }, trainer: { total_batches: 1 } };
    await sft({ backend: smallBackend(new CpuDevice()), rows: { train: rows }, loggers: [log], settings });
    return log.of("train")[0]!.metrics["train/entropy"]!;
  };
  const plain = await entropyAt(1);
  expect(plain).toBeGreaterThan(1);
  expect(await entropyAt(0.25)).toBeCloseTo(plain, 5);
});

describe("a run", () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "grpu-sft-"));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  const SETTINGS = {
    data: { train_batch_size: 2, seed: 5 },
    trainer: { total_epochs: 2, save_freq: 2, test_freq: 2 },
    training: { learning_rate: 0.01, metric_for_best_model: "val/loss", greater_is_better: false },
  } satisfies SftOptions["settings"];

  function fileRun(name: string, more: Partial<SftOptions> = {}) {
    const folder = join(dir, name);
    const backend = smallBackend(new CpuDevice());
    const options: SftOptions = {
      backend,
      rows: { train: madeRows([9, 4, 17, 5, 12, 3, 8]), val: madeRows([6, 11]) },
      settings: SETTINGS,
      checkpoints: new FolderCheckpoints<LoopState>(folder),
      loggers: [new MetricsFile(join(folder, "metrics.jsonl"))],
      ...more,
    };
    const onUpdate = (listener: () => void) => {
      const update = backend.forwardBackward.bind(backend);
      backend.forwardBackward = (...given) => {
        listener();
        return update(...given);
      };
    };
    const outcome = () => outcomeIn(folder, backend.languageModel.trainable);
    return { run: () => sft(options), outcome, onUpdate, folder, backend };
  }

  test.each([2, 5])("stopped in step %i and resumed equals the uninterrupted one", async (stopAt) => {
    expect(await expectResumedAsWhole(fileRun, { stopAt })).toMatchObject({ step: 6 });
  });

  test("keeps the best checkpoint by its held-out loss, and logs under verl's names", async () => {
    const { run, folder, outcome } = fileRun("best");
    const { state } = await run();
    const lines = (await outcome()).lines
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    const validations = lines.filter(({ phase }) => phase === "val");
    expect(validations.map(({ step }) => step)).toEqual([0, 2, 4, 6]);
    const best = validations.slice(1).reduce((a, b) => (b["val/loss"] < a["val/loss"] ? b : a));
    expect(state.best).toEqual({ step: best.step, value: best["val/loss"] });
    const pointer = JSON.parse(await readFile(join(folder, "best_checkpoint.json"), "utf8"));
    expect(pointer).toEqual({ checkpoint: `global_step_${best.step}`, metric: "val/loss", value: best["val/loss"] });
    const steps = lines.filter(({ phase }) => phase === "train");
    expect(Object.keys(steps[0])).toEqual(
      expect.arrayContaining([
        "train/loss",
        "train/grad_norm",
        "train/lr",
        "train/global_tokens",
        "train/total_tokens(B)",
      ]),
    );
    expect(steps[2]["train/total_tokens(B)"]).toBeCloseTo(
      sumOf(steps.slice(0, 3).map((each) => each["train/global_tokens"])) / 1e9,
      15,
    );
    expect(steps.at(-1)["train/loss"]).toBeLessThan(steps[0]["train/loss"]);
  });

  test("without a number of steps between validations validates at its end", async () => {
    const log = new MemoryLogger();
    const trainer = { total_epochs: 1, test_freq: -1, val_before_train: false };
    await fileRun("end", { loggers: [log], settings: { ...SETTINGS, trainer } }).run();
    expect(log.of("val").map(({ step }) => step)).toEqual([3]);
  });

  test("is refused with fewer rows than a batch takes", async () => {
    const { run } = fileRun("few", { rows: { train: madeRows([5]) } });
    await expect(run()).rejects.toThrow(/one needs 2 rows, and the training data has 1.*\(data\.train_batch_size\)/);
  });

  const HALF_ROOT = Math.SQRT1_2 / 2;
  test.each<[lr_schedule: "constant" | "linear" | "cosine", warmup_steps: number, total: number, factors: number[]]>([
    ["constant", -1, 3, [1, 1, 1]],
    ["constant", 2, 4, [0, 0.5, 1, 1]],
    ["linear", -1, 1, [1]],
    ["linear", -1, 4, [1, 0.75, 0.5, 0.25]],
    ["linear", 2, 6, [0, 0.5, 1, 0.75, 0.5, 0.25]],
    ["cosine", -1, 1, [1]],
    ["cosine", -1, 4, [1, 0.5 + HALF_ROOT, 0.5, 0.5 - HALF_ROOT]],
    ["cosine", 1, 3, [0, 1, 0.5]],
  ])(
    "has the learning rates of transformers: %s, %i of warm-up, %i steps",
    async (lr_schedule, warmup_steps, total, factors) => {
      const log = new MemoryLogger();
      const trainer = { total_batches: total, test_freq: -1, save_freq: -1, val_before_train: false };
      const settings = { ...SETTINGS, trainer, algorithm: { lr_schedule, warmup_steps } };
      await fileRun("rate", { loggers: [log], settings }).run();
      const steps = log.of("train");
      expect(steps).toHaveLength(total);
      for (const [i, factor] of factors.entries()) {
        expect(steps[i]!.metrics["train/lr"]).toBeCloseTo(0.01 * factor, 9);
        const note = "the learning rate is 0 (train/lr): the weights do not change";
        expect(steps[i]!.note).toBe(factor === 0 ? note : undefined);
      }
    },
  );

  test.each([Number.NaN, 0, -4, 2.5])("is refused with a budget of %d tokens", async (batchTokens) => {
    const { run } = fileRun("budget", { batchTokens });
    await expect(run()).rejects.toThrow(`batchTokens must be a whole number from 1 (${batchTokens})`);
  });

  test("is refused before its first step with a best metric that no validation measures", async () => {
    const log = new MemoryLogger();
    const training = { ...SETTINGS.training, metric_for_best_model: "val/lossy" };
    const trainer = { ...SETTINGS.trainer, val_before_train: false };
    const { run } = fileRun("metric", { loggers: [log], settings: { ...SETTINGS, trainer, training } });
    await expect(run()).rejects.toThrow(
      /no metric val\/lossy\. Set trainer\.metric_for_best_model to one of val\/loss, val\/perplexity, val\/mean_token_accuracy, or to null/,
    );
    expect(log.of("train")).toEqual([]);
  });

  test("keeps its last step where the validation that follows it does not measure the best metric", async () => {
    const training = { ...SETTINGS.training, metric_for_best_model: "val/mean_token_accuracy" };
    const trainer = { total_epochs: 1, test_freq: -1, val_before_train: false };
    const silent = fileRun("kept", { settings: { ...SETTINGS, trainer, training } });
    const logprobs = silent.backend.logprobs.bind(silent.backend);
    silent.backend.logprobs = async (...given) => {
      const { greedy: _, ...rest } = await logprobs(...given);
      return rest;
    };
    await expect(silent.run()).rejects.toThrow(/validation does not measure val\/mean_token_accuracy/);
    const log = new MemoryLogger();
    const again = fileRun("kept", { settings: { ...SETTINGS, trainer }, loggers: [log] });
    expect(await again.run()).toMatchObject({ isComplete: true, state: { step: 3 } });
    expect([log.of("train"), log.of("val").map(({ step }) => step)]).toEqual([[], [3]]);
  });

  test("with a token budget takes every row once an epoch", async () => {
    const log = new MemoryLogger();
    const { run } = fileRun("tokens", { batchTokens: 20, loggers: [log] });
    await run();
    const tokens = log.of("train").map(({ metrics }) => metrics["train/global_tokens"]!);
    expect(Math.max(...tokens)).toBeLessThanOrEqual(20);
    expect(sumOf(tokens)).toBe(2 * (9 + 4 + 17 + 5 + 12 + 3 + 8));
  });
});

function trainedIn(rows: readonly EncodedRow[]): number {
  return sumOf(rows.flatMap(({ mask }) => mask));
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

/** One after the other: a device takes one pass at a time. */
async function mapInOrder<T, R>(items: readonly T[], of: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (const item of items) results.push(await of(item));
  return results;
}
