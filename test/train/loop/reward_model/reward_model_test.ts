/** Reward models: held-out pairs are ranked, margins widen the gap, passes and resumed runs change nothing, wrong rows are refused. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { ValueModel, type ValueModelOptions } from "../../../../src/engine/model/value_model.ts";
import { LocalRewardModel } from "../../../../src/train/backend/local/reward_model.ts";
import { FolderCheckpoints } from "../../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { MetricsFile } from "../../../../src/train/log/loggers/jsonl.ts";
import type { LoopState } from "../../../../src/train/loop/contract.ts";
import type { EncodedPreference } from "../../../../src/train/loop/dpo/encode.ts";
import {
  packedAnswers,
  type RewardModelRunOptions,
  totalRewardModelSteps,
  trainRewardModel,
} from "../../../../src/train/loop/reward_model/reward_model.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { MemoryLogger } from "../../../fixtures/loop.ts";
import { expectResumedAsWhole, madePairs, outcomeIn, warningsOnResume } from "../../../fixtures/resumed_rows.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

function smallModel(device: Device, options: Omit<ValueModelOptions, "lora"> = {}): LocalRewardModel {
  const remake = async () => ValueModel.create(device, SMALL_MODEL, { seed: 3, ...options });
  return new LocalRewardModel({
    model: ValueModel.create(device, SMALL_MODEL, { seed: 3, ...options }),
    remake,
    name: "small",
  });
}

const SETTINGS = {
  data: { train_batch_size: 4, seed: 5 },
  trainer: { total_batches: 8, val_before_train: true },
  training: { learning_rate: 0.01, metric_for_best_model: null },
} satisfies RewardModelRunOptions["settings"];

async function recorded(options: Partial<RewardModelRunOptions> & Pick<RewardModelRunOptions, "backend">) {
  const log = new MemoryLogger();
  const rows = { train: madePairs(8), val: madePairs(3) };
  await trainRewardModel({ rows, settings: SETTINGS, loggers: [log], ...options });
  return { train: log.of("train").map(({ metrics }) => metrics), val: log.of("val").map(({ metrics }) => metrics) };
}

test("chosen answers are scored above rejected ones, on held-out pairs too", async () => {
  const { train, val } = await recorded({ backend: smallModel(new CpuDevice()) });
  expect(val.at(-1)!["val/accuracy"]).toBe(1);
  expect(val.at(-1)!["val/margin"]! - val[0]!["val/margin"]!).toBeGreaterThan(0.5);
  expect(val.at(-1)!["val/loss"]).toBeLessThan(val[0]!["val/loss"]!);
  expect(train.at(-1)!["train/loss"]).toBeLessThan(train[0]!["train/loss"]!);
  expect(train[0]!["train/grad_norm"]).toBeGreaterThan(0);
});

test("a margin is asked for in the loss, and centring keeps the scores near 0", async () => {
  const run = (margin: number, center: number) => {
    const rows = { train: madePairs(8, { margin }), val: madePairs(3) };
    const loss = { center_rewards_coefficient: center };
    return recorded({ backend: smallModel(new CpuDevice()), rows, loss });
  };
  const [plain, wide, centred] = [await run(0, 0), await run(8, 0), await run(0, 1)];
  // -log s(d - 8) is 8 - d and little more.
  expect(wide.train[0]!["train/loss"]).toBeCloseTo(8 - plain.train[0]!.margin!, 2);
  const meanOf = ({ val }: typeof plain) => Math.abs(val.at(-1)!["val/mean_reward"]!);
  expect(meanOf(centred)).toBeLessThan(0.5 * meanOf(plain));
});

test("a row is scored at the token that ends its answer, not at what a chat template writes behind it", () => {
  const at = { file: "made.jsonl", line: 1 };
  const { tokens, offsets } = packedAnswers([
    { ids: [5, 6, 7, 8], mask: [0, 1, 1, 0], ...at },
    { ids: [5, 9], mask: [0, 1], ...at },
  ]);
  expect([...tokens]).toEqual([5, 6, 7, 5, 9]);
  expect([...offsets]).toEqual([0, 3, 5]);
});

overDevices("a step that is cut into passes", (device) => {
  test("has the same loss, bit for bit, and the same gradient", async () => {
    const run = async (maxTokensPerPass: number) => {
      const settings = { ...SETTINGS, trainer: { total_batches: 2 } };
      return (await recorded({ backend: smallModel(device, { maxTokensPerPass }), settings })).train;
    };
    // A pass of 8 tokens holds one row: it ends between the rows of a pair.
    const [whole, cut] = [await run(4096), await run(8)];
    for (const name of ["train/loss", "margin", "max_reward"]) expect(cut[0]![name]).toBe(whole[0]![name]);
    expect(cut[0]!["train/grad_norm"]).toBeCloseTo(whole[0]!["train/grad_norm"]!, 6);
    expect(cut[1]!["train/loss"]).toBeCloseTo(whole[1]!["train/loss"]!, 6);
  });
});

describe("a run", () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "grpu-reward-model-"));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  function fileRun(name: string, more: Partial<RewardModelRunOptions> = {}) {
    const folder = join(dir, name);
    const backend = smallModel(new CpuDevice());
    const options: RewardModelRunOptions = {
      backend,
      rows: { train: madePairs(7), val: madePairs(3) },
      settings: {
        data: { train_batch_size: 2, seed: 5 },
        trainer: { total_epochs: 2, save_freq: 2, test_freq: 2 },
        training: { learning_rate: 0.01, metric_for_best_model: "val/margin", greater_is_better: true },
      },
      checkpoints: new FolderCheckpoints<LoopState>(folder),
      loggers: [new MetricsFile(join(folder, "metrics.jsonl"))],
      ...more,
    };
    const onUpdate = (listener: () => void) => {
      const update = backend.backward.bind(backend);
      backend.backward = (...given) => {
        listener();
        return update(...given);
      };
    };
    const outcome = () => outcomeIn(folder, backend.valueModel.trainable);
    return { run: () => trainRewardModel(options), outcome, onUpdate };
  }

  test.each([2, 5])("stopped in step %i and resumed equals the uninterrupted one", async (stopAt) => {
    expect(await expectResumedAsWhole(fileRun, { stopAt })).toMatchObject({ step: 6, best: { step: 6 } });
  });
});

test("a limit of tokens counts both answers of a pair", () => {
  // Two rows of 6 and 7 tokens a pair.
  const settings = { trainer: { total_epochs: 1 }, training: { metric_for_best_model: null } };
  const stepsOf = (batchTokens: number) =>
    totalRewardModelSteps({ rows: { train: madePairs(8) }, batchTokens, settings });
  expect([stepsOf(13), stepsOf(26), stepsOf(38), stepsOf(39)]).toEqual([8, 4, 4, 3]);
});

test.each<[what: string, change: (pair: EncodedPreference) => EncodedPreference]>([
  ["another answer is preferred", ({ rows, ...at }) => ({ rows: [rows[1]!, rows[0]!], ...at })],
  ["the margins differ", (pair) => ({ ...pair, margin: 2 })],
  ["the rows have other lines", (pair) => ({ ...pair, line: pair.line + 1 })],
])("a resumed run warns where %s", async (_, change) => {
  const of = { rows: madePairs(8), changed: madePairs(8).map(change) };
  const said = await warningsOnResume(of, ({ trainer, ...part }) =>
    trainRewardModel({ backend: smallModel(new CpuDevice()), settings: { ...SETTINGS, trainer }, ...part }),
  );
  expect(said).toEqual(["", "", expect.stringMatching(/rows with other content/)]);
});

describe("what cannot be trained on is refused before the first step", () => {
  test.each<[string, Partial<RewardModelRunOptions>, RegExp]>([
    [
      "labelled rows",
      { rows: { train: madePairs(8).map(({ rows, ...at }) => ({ rows: [rows[0]!], label: true, ...at })) } },
      /it takes pairs .*this row is none/,
    ],
    [
      "a pair with a label",
      { rows: { train: madePairs(8).map((pair) => ({ ...pair, label: true })) } },
      /it takes pairs .*this row is none/,
    ],
    [
      "one answer alone, among the held-out rows too",
      { rows: { train: madePairs(8), val: madePairs(2).map((pair) => ({ ...pair, rows: [pair.rows[0]!] })) } },
      /it takes pairs .*this row is none \(made\.jsonl:1\)/,
    ],
    ["a coefficient below 0", { loss: { center_rewards_coefficient: -1 } }, /a number from 0 \(-1\)/],
    [
      "a metric that no pair has",
      { settings: { training: { metric_for_best_model: "val/kl" } } },
      /held-out rows have no metric val\/kl.*val\/accuracy/,
    ],
    [
      "fewer pairs than a batch takes",
      { settings: { data: { train_batch_size: 9 } } },
      /one needs 9 rows, and the training data has 8/,
    ],
  ])("%s", async (_, options, message) => {
    await expect(recorded({ backend: smallModel(new CpuDevice()), ...options })).rejects.toThrow(message);
  });
});
