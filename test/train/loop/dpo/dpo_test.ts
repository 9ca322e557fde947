/** Preference training: margins rise under every loss, passes and resumed runs change nothing, wrong forms are refused. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { PreferenceSpec } from "../../../../src/engine/algorithm/preference/resolve.ts";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../../src/train/backend/local/backend.ts";
import { FolderCheckpoints } from "../../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { MetricsFile } from "../../../../src/train/log/loggers/jsonl.ts";
import type { LoopState } from "../../../../src/train/loop/contract.ts";
import { type DpoOptions, dpo, totalDpoSteps } from "../../../../src/train/loop/dpo/dpo.ts";
import type { EncodedPreference } from "../../../../src/train/loop/dpo/encode.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { MemoryLogger } from "../../../fixtures/loop.ts";
import { expectResumedAsWhole, madePairs, outcomeIn, warningsOnResume } from "../../../fixtures/resumed_rows.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

function madeLabels(count: number): EncodedPreference[] {
  return madePairs(count).map(({ rows, ...at }, i) => ({ rows: [rows[i % 2]!], label: i % 2 === 0, ...at }));
}

function smallBackend(device: Device, options: LanguageModelOptions = {}): LocalBackend {
  return new LocalBackend({ model: LanguageModel.create(device, SMALL_MODEL, { seed: 3, ...options }) });
}

const SETTINGS = {
  data: { train_batch_size: 4, seed: 5 },
  trainer: { total_batches: 8, val_before_train: true },
  training: { learning_rate: 0.01, metric_for_best_model: null },
} satisfies DpoOptions["settings"];

async function recorded(options: Partial<DpoOptions> & Pick<DpoOptions, "backend">) {
  const log = new MemoryLogger();
  const rows = { train: madePairs(8), val: madePairs(3) };
  await dpo({ rows, settings: SETTINGS, loggers: [log], ...options });
  return { train: log.of("train").map(({ metrics }) => metrics), val: log.of("val").map(({ metrics }) => metrics) };
}

const LOSSES: readonly PreferenceSpec[] = [
  { loss_type: "sigmoid", settings: { beta: 0.5, rpo_alpha: 0.1 } },
  { loss_type: "robust", settings: { beta: 0.5, label_smoothing: 0.1 } },
  { loss_type: "hinge", settings: { beta: 0.5 } },
  { loss_type: "ipo", settings: { beta: 0.5 } },
  { loss_type: "simpo", settings: { beta: 2, simpo_gamma: 1 } },
  { loss_type: "orpo", settings: { beta: 0.5 } },
];

test("a slope beyond float32 is refused with the loss and the row, not with the step's own loss", async () => {
  const loss = { loss_type: "hinge", settings: { beta: 1e40 } };
  const run = recorded({ backend: smallBackend(new CpuDevice()), loss });
  await expect(run).rejects.toThrow(/with the loss hinge: the slope .*\(Infinity\)\. Remove the row.*\(\S+:\d+\)/);
});

test.each(LOSSES)("$loss_type prefers chosen answers to rejected ones, on held-out pairs too", async (loss) => {
  const { train, val } = await recorded({ backend: smallBackend(new CpuDevice()), loss });
  const [first, last] = [val[0]!, val.at(-1)!];
  expect(last["val/rewards/margins"]! - first["val/rewards/margins"]!).toBeGreaterThan(0.2);
  expect(last["val/rewards/accuracies"]).toBe(1);
  expect(last["val/loss"]).toBeLessThan(first["val/loss"]!);
  expect(train.at(-1)!["train/loss"]).toBeLessThan(train[0]!["train/loss"]!);
  expect(train[0]!["train/grad_norm"]).toBeGreaterThan(0);
});

test("kto raises desirable answers above undesirable ones", async () => {
  const rows = { train: madeLabels(8), val: madeLabels(4) };
  const { val } = await recorded({ backend: smallBackend(new CpuDevice()), rows, loss: { loss_type: "kto" } });
  expect(val[0]).toMatchObject({ "val/kl": 0, "val/rewards/margins": 0, "val/loss": 0.5 });
  expect(val.at(-1)!["val/rewards/margins"]).toBeGreaterThan(0.1);
  expect(val.at(-1)!["val/loss"]).toBeLessThan(0.5);
});

overDevices("before the first step", (device) => {
  test.each([undefined, { rank: 4 }])("the policy is its reference, bit for bit (adapter %o)", async (lora) => {
    const { train } = await recorded({ backend: smallBackend(device, lora ? { lora } : {}) });
    expect(train[0]).toMatchObject({ "rewards/chosen": 0, "rewards/margins": 0, "rewards/accuracies": 0 });
    expect(train[0]!["train/loss"]).toBe(Math.log1p(1));
    expect(train[1]!["rewards/margins"]).not.toBe(0);
  });

  test("a step that is cut into passes has the same loss, bit for bit, and the same gradient", async () => {
    const run = async (maxTokensPerPass: number) => {
      const settings = { ...SETTINGS, trainer: { total_batches: 2 } };
      return (await recorded({ backend: smallBackend(device, { maxTokensPerPass }), settings })).train;
    };
    // A pass of 8 tokens holds one row: it ends between the rows of a pair.
    const [whole, cut] = [await run(4096), await run(8)];
    for (const name of ["train/loss", "rewards/margins", "logps/chosen", "entropy"])
      expect(cut[0]![name]).toBe(whole[0]![name]);
    expect(cut[0]!["train/grad_norm"]).toBeCloseTo(whole[0]!["train/grad_norm"]!, 6);
    expect(cut[1]!["train/loss"]).toBeCloseTo(whole[1]!["train/loss"]!, 6);
  });
});

describe("a run", () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "grpu-dpo-"));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  function fileRun(name: string, more: Partial<DpoOptions> = {}) {
    const folder = join(dir, name);
    const backend = smallBackend(new CpuDevice());
    const options: DpoOptions = {
      backend,
      rows: { train: madePairs(7), val: madePairs(3) },
      settings: {
        ...SETTINGS,
        data: { train_batch_size: 2, seed: 5 },
        trainer: { total_epochs: 2, save_freq: 2, test_freq: 2 },
        training: { learning_rate: 0.01, metric_for_best_model: "val/rewards/margins", greater_is_better: true },
      },
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
    return { run: () => dpo(options), outcome, onUpdate };
  }

  test.each([2, 5])("stopped in step %i and resumed equals the uninterrupted one", async (stopAt) => {
    expect(await expectResumedAsWhole(fileRun, { stopAt })).toMatchObject({ step: 6, best: { step: 6 } });
  });
});

describe("a resumed run", () => {
  const swapped = (rows: EncodedPreference["rows"]) => [rows[1]!, rows[0]!];
  test.each<[what: string, change: (pair: EncodedPreference) => EncodedPreference]>([
    ["another answer is preferred", ({ rows, ...at }) => ({ rows: swapped(rows), ...at })],
    ["the rows have other lines", (pair) => ({ ...pair, line: pair.line + 1 })],
    [
      "a token no longer trains",
      ({ rows: [chosen, ...others], ...at }) => ({
        rows: [{ ...chosen!, mask: chosen!.mask.map((each, t) => (t === 3 ? 0 : each)) }, ...others],
        ...at,
      }),
    ],
  ])("warns where %s", async (_, change) => {
    const of = { rows: madePairs(8), changed: madePairs(8).map(change) };
    const said = await warningsOnResume(of, ({ trainer, ...part }) =>
      dpo({ backend: smallBackend(new CpuDevice()), settings: { ...SETTINGS, trainer }, ...part }),
    );
    expect(said).toEqual(["", "", expect.stringMatching(/rows with other content/)]);
  });
});

test("a limit of tokens counts both answers of a pair", () => {
  // Two rows of 6 and 7 tokens a pair.
  const stepsOf = (batchTokens: number) =>
    totalDpoSteps({ rows: { train: madePairs(8) }, batchTokens, settings: { trainer: { total_epochs: 1 } } });
  expect([stepsOf(13), stepsOf(26), stepsOf(38), stepsOf(39)]).toEqual([8, 4, 4, 3]);
});

describe("what cannot be trained on is refused before the first step", () => {
  test.each<[string, Partial<DpoOptions>, RegExp]>([
    [
      "labelled rows for a loss of pairs",
      { rows: { train: madeLabels(8) } },
      /loss sigmoid: it takes pairs .*this row is none/,
    ],
    ["pairs for kto", { loss: { loss_type: "kto" } }, /loss kto: it takes labelled rows/],
    [
      "a step of one row for kto",
      { loss: { loss_type: "kto" }, rows: { train: madeLabels(8) }, settings: { data: { train_batch_size: 1 } } },
      /Set data\.train_batch_size to 2 or more/,
    ],
    [
      "steps by tokens for kto",
      { loss: { loss_type: "kto" }, rows: { train: madeLabels(8) }, batchTokens: 64 },
      /a step of 64 tokens may take one row. Set data\.train_batch_size/,
    ],
    [
      "one held-out row for kto",
      { loss: { loss_type: "kto" }, rows: { train: madeLabels(8), val: madeLabels(1) } },
      /one row is held out/,
    ],
    [
      "a setting of another loss",
      { loss: { loss_type: "hinge", settings: { simpo_gamma: 1 } } },
      /Cannot set simpo_gamma of the preference loss hinge/,
    ],
    [
      "a metric that no pair has",
      { settings: { training: { metric_for_best_model: "val/kl" } } },
      /held-out rows have no metric val\/kl.*val\/rewards\/accuracies/,
    ],
    [
      "fewer pairs than a batch takes",
      { settings: { data: { train_batch_size: 9 } } },
      /one needs 9 rows, and the training data has 8/,
    ],
  ])("%s", async (_, options, message) => {
    await expect(recorded({ backend: smallBackend(new CpuDevice()), ...options })).rejects.toThrow(message);
  });
});
