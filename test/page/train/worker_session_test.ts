/** The worker of the page that trains, through its messages, on the `cpu` device. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { unzipSync } from "fflate";
import { beforeAll, describe, expect, test } from "vitest";
import "../../../examples/stories/reward.ts";
import { WorkerSession } from "../../../page/train/engine/worker_session.ts";
import type { Command, News } from "../../../page/train/protocol.ts";
import type { Given } from "../../../page/train/settings.ts";
import "../../../src/train/task/environments.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { blobFolder } from "../../../src/engine/model/files/memory_folder.ts";
import { openAdapter } from "../../../src/engine/model/files/peft.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

/** The package's files; of held-out rows the first four, so that a validation is quick. */
function readPackaged(path: string): string | undefined {
  const file = join(ROOT, path);
  const text = existsSync(file) ? readFileSync(file, "utf8") : undefined;
  return /_val\.jsonl$/.test(path) ? text?.split("\n").slice(0, 4).join("\n") : text;
}

const SMALL: Given = {
  "warmup.steps": "1",
  "rllm.data.train_batch_size": "2",
  "rllm.rollout.n": "2",
  "rllm.trainer.total_batches": "2",
};

class Page {
  readonly news: News[] = [];
  readonly session = new WorkerSession((news) => this.onNews(news), readPackaged);
  onNews(news: News): void {
    this.news.push(news);
  }
  send(command: Command): Promise<void> {
    return this.session.receive(command);
  }
  of<T extends News["type"]>(type: T): Extract<News, { type: T }>[] {
    return this.news.filter((each): each is Extract<News, { type: T }> => each.type === type);
  }
}

describe("a run of sums", () => {
  const page = new Page();
  beforeAll(async () => {
    page.onNews = (news) => {
      page.news.push(news);
      if (news.type !== "record" || news.phase !== "train" || news.step !== 1) return;
      const given = { ...SMALL, "rllm.rollout.n": "3", "rllm.algorithm.adv_estimator": "rloo" };
      void page.send({ type: "change", given });
    };
    await page.send({ type: "start", recipe: "sums", given: SMALL, device: "cpu" });
  });

  test("tells of its device, of every step and of its end", () => {
    expect(page.of("opened")).toEqual([
      expect.objectContaining({ kind: "cpu", parameters: 100416, trainable: 100416 }),
    ]);
    const records = page.of("record").map(({ phase, step }) => `${phase} ${step}`);
    expect(records).toEqual(["warmup 1", "val 0", "train 1", "train 2", "val 2"]);
    expect(page.of("stage").map(({ stage, step }) => `${step} ${stage}`)).toEqual(
      [1, 2].flatMap((step) =>
        ["generate", "transform", "reject", "batch", "process", "advantages", "update", "log"].map(
          (stage) => `${step} ${stage}`,
        ),
      ),
    );
    expect(page.of("ended")).toEqual([{ type: "ended", isComplete: true, step: 2 }]);
    expect(page.of("refused")).toEqual([]);
  });

  test("takes a change of settings at the next step", () => {
    expect(page.of("changed")).toEqual([expect.objectContaining({ fromStep: 2 })]);
    const sizes = page.of("record").flatMap(({ groups }) => groups?.groups.map(({ rewards }) => rewards.length) ?? []);
    expect(sizes).toEqual([2, 2, 3, 3]);
  });

  test("shows each answer token by token, with its reward and its advantage", () => {
    const [first] = page.of("record").find(({ rollouts }) => rollouts)!.rollouts!;
    expect(first!.attempts).toHaveLength(2);
    for (const { passages, reward, advantage } of first!.attempts) {
      expect(passages.map(({ isSampled }) => isSampled)).toEqual([false, true]);
      expect(passages[0]!.tokens.map(({ text }) => text).join("")).toBe(first!.prompt);
      expect(passages[1]!.tokens.every(({ logprob }) => logprob! <= 0)).toBe(true);
      expect([0, 1]).toContain(reward);
      expect(Number.isFinite(advantage)).toBe(true);
    }
  });

  test("exports a model that our reader opens", async () => {
    await page.send({ type: "export" });
    const { name, bytes } = page.of("exported")[0]!;
    expect(name).toMatch(/^grpu-model-step-\d+\.zip$/);
    const { config, tokenizer } = await openModelFolder(unzipped(bytes));
    expect(config.hiddenSize).toBe(64);
    expect(tokenizer?.decode(tokenizer.encode("37+5="))).toBe("37+5=");
  });
});

function unzipped(bytes: Uint8Array) {
  const files = Object.entries(unzipSync(bytes)).map(
    ([name, content]) => [name.split("/")[1]!, new Blob([content as Uint8Array<ArrayBuffer>])] as const,
  );
  return blobFolder("exported", new Map(files));
}

test("ReMax, chosen while a run goes on, plays its greedy attempts from the next step on", async () => {
  const page = new Page();
  page.onNews = (news) => {
    page.news.push(news);
    if (news.type === "record" && news.phase === "train" && news.step === 1)
      void page.send({ type: "change", given: { ...SMALL, "rllm.algorithm.adv_estimator": "remax" } });
  };
  await page.send({ type: "start", recipe: "sums", given: SMALL, device: "cpu" });
  expect(page.of("failed")).toEqual([]);
  const steps = page.of("record").filter(({ phase }) => phase === "train");
  const greedy = steps.map(({ metrics }) => metrics["reward/arithmetic/greedy_mean"]);
  expect(greedy).toEqual([undefined, expect.any(Number)]);
});

test("a pause holds the run between two steps; a stop ends it", async () => {
  const page = new Page();
  page.onNews = (news) => {
    page.news.push(news);
    if (news.type === "record" && news.phase === "warmup") void page.send({ type: "pause" });
  };
  const ended = page.send({ type: "start", recipe: "sums", given: { ...SMALL, "warmup.steps": "3" }, device: "cpu" });
  await expect.poll(() => page.of("paused").length, { timeout: 30_000 }).toBe(1);
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(page.of("record")).toHaveLength(1);
  await page.send({ type: "stop" });
  await ended;
  expect(page.of("ended")).toEqual([{ type: "ended", isComplete: false, step: 0 }]);
});

describe("what is refused says what to do", () => {
  const cases: [what: string, command: Command, message: RegExp][] = [
    [
      "a value of a wrong type",
      { type: "describe", recipe: "sums", given: { "rllm.rollout.n": "0" } },
      /rllm\.rollout\.n/,
    ],
    [
      "an unknown estimator",
      { type: "describe", recipe: "sums", given: { "rllm.algorithm.adv_estimator": "grop" } },
      /grop.*grpo/s,
    ],
    [
      "a task without its model",
      { type: "start", recipe: "stories", given: {}, device: "cpu" },
      /needs a pretrained model\. Give the page its folder/,
    ],
    [
      "an empty folder",
      { type: "start", recipe: "stories", given: {}, device: "cpu", model: { name: "empty", files: new Map() } },
      /has neither config\.json/,
    ],
    ["a change before a run", { type: "change", given: {} }, /no run trains/],
    ["an export before a run", { type: "export" }, /nothing was trained/],
  ];
  test.each(cases)("%s", async (_, command, message) => {
    const page = new Page();
    await page.send(command);
    expect(page.news).toEqual([{ type: "refused", about: command.type, message: expect.stringMatching(message) }]);
  });

  test("a change that a run under way cannot take", async () => {
    const page = new Page();
    const started = page.send({ type: "start", recipe: "sums", given: SMALL, device: "cpu" });
    await expect.poll(() => page.of("opened").length, { timeout: 30_000 }).toBe(1);
    await page.send({ type: "change", given: { ...SMALL, "training.seed": "2" } });
    expect(page.of("refused")[0]?.message).toMatch(/Cannot change training\.seed while the run trains/);
    await page.send({ type: "stop" });
    await started;
  });
});

test("describes the settings of each recipe, and the methods that it can take", async () => {
  const page = new Page();
  for (const recipe of ["digits", "sums", "turns", "stories"] as const)
    await page.send({ type: "describe", recipe, given: {} });
  const [digits, sums, turns, stories] = page.of("described");
  expect(digits!.values).toMatchObject({ "warmup.steps": "60", "rllm.trainer.total_batches": "30" });
  expect(sums!.values).toMatchObject({ "training.learning_rate": "0.0015", "rllm.algorithm.loss_fn": "ppo" });
  expect(turns!.values).toMatchObject({ "rllm.rollout.n": "32" });
  expect(stories!.values).toMatchObject({ "rllm.data.train_batch_size": "8" });
  const { "rllm.algorithm.adv_estimator": estimators, "rllm.algorithm.loss_fn": losses } = sums!.choices;
  expect(estimators).toEqual(expect.arrayContaining(["grpo", "rloo", "remax", "reinforce"]));
  // It needs the values of a critic.
  expect(estimators).not.toContain("gae");
  expect(losses).toEqual(expect.arrayContaining(["ppo", "cispo", "gspo"]));
});

test.skipIf(!hasShared)("stories train an adapter of a given folder, which is exported for PEFT", async () => {
  const dir = sharedPath("models/stories260k");
  const files = readdirSync(dir).map((name) => [name, new Blob([readFileSync(join(dir, name))])] as const);
  const page = new Page();
  const given = { "rllm.data.train_batch_size": "1", "rllm.rollout.n": "2", "rllm.trainer.total_batches": "1" };
  const model = { name: "stories260k", files: new Map(files) };
  await page.send({ type: "start", recipe: "stories", given, device: "cpu", model });
  expect(page.of("failed")).toEqual([]);
  expect(page.of("ended")).toEqual([{ type: "ended", isComplete: true, step: 1 }]);
  await page.send({ type: "export" });
  const { rank, modules, base } = await openAdapter(unzipped(page.of("exported")[0]!.bytes));
  expect([rank, base]).toEqual([8, "stories260k"]);
  expect(modules.size).toBeGreaterThan(10);
});
