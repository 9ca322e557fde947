/** What the loggers write into a run's folder, line by line and file by file. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import type { Episode } from "../../../src/train/data/types.ts";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import { EpisodeFiles } from "../../../src/train/log/loggers/episode_files.ts";
import { GroupsFile, jsonlFiles, MetricsFile, SamplesFile } from "../../../src/train/log/loggers/jsonl.ts";
import { loggers, registerLogger } from "../../../src/train/log/loggers/loggers.ts";
import { ReportFile } from "../../../src/train/log/loggers/report_file.ts";
import { anEpisode, aStep, aTrajectory } from "../../fixtures/episodes.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const root = temporaryFolder("run-files");
let dir: string;
let count = 0;
beforeEach(() => {
  dir = join(root, String(count++));
});

function record(phase: LogRecord["phase"], step: number, episodes?: readonly Episode[]): LogRecord {
  return { phase, step, totalSteps: 9, metrics: {}, episodes };
}

const linesOf = (file: string) =>
  readFileSync(file, "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
const json = (...path: string[]) => JSON.parse(readFileSync(join(dir, ...path), "utf8"));

describe("samples.jsonl", () => {
  const file = () => join(dir, "samples.jsonl");

  test("keeps the first attempts at the first sixteen tasks of a validation", () => {
    const episodes = Array.from({ length: 40 }, (_, i) =>
      anEpisode({ task: { id: `t${i >> 1}`, instruction: "?", metadata: {} }, rollout_index: i % 2 }),
    );
    const logger = new SamplesFile(file());
    logger.log(record("train", 1, episodes));
    logger.log(record("val", 2));
    expect(existsSync(file())).toBe(false);
    logger.log(record("val", 3, episodes));
    const lines = linesOf(file());
    expect(lines.map(({ task, step }) => [task, step])).toEqual(Array.from({ length: 16 }, (_, i) => [`t${i}`, 3]));
  });

  test.each<[what: string, episode: Partial<Episode>, response: string, reward: number | null]>([
    ["one answer", { trajectories: [aTrajectory({ steps: [aStep({ model_response: "2" })] })] }, "2", 1],
    [
      "several agents and steps",
      {
        trajectories: [
          aTrajectory({ reward: 0.25, steps: [aStep({ model_response: "a" }), aStep({ model_response: "b" })] }),
          aTrajectory({
            reward: null,
            steps: [aStep({ reward: 4 }), aStep({ reward: 8 }), aStep({ model_response: "c", reward: 0.5 })],
          }),
          aTrajectory({ reward: null, steps: [] }),
        ],
      },
      "a\nb\n\n\nc",
      0.75,
    ],
    ["nothing", { trajectories: [], is_correct: false }, "", null],
  ])("holds the responses and the summed reward of %s", (_, episode, response, reward) => {
    new SamplesFile(file()).log(record("val", 1, [anEpisode(episode)]));
    const is_correct = episode.is_correct ?? true;
    expect(linesOf(file())).toEqual([{ step: 1, task: "t", prompt: "1+1=", response, reward, is_correct }]);
  });
});

describe("groups.jsonl", () => {
  const file = () => join(dir, "groups.jsonl");

  test("has a group per task's place and agent, and a reward per attempt", () => {
    const two = (task_index: number, rewards: [number | null, number | null], is_correct: boolean) =>
      anEpisode({
        task_index,
        is_correct,
        trajectories: rewards.map((reward, i) =>
          aTrajectory({
            name: `agent ${i}`,
            reward,
            steps: i === 0 ? [aStep({ reward: 3 }), aStep({ reward: 4 }), aStep({ reward: 2 })] : [],
          }),
        ),
      });
    const episodes = [two(0, [1, 0.123456], true), two(1, [0, 0], false), two(0, [null, null], false)];
    new GroupsFile(file()).log(record("train", 4, episodes));
    expect(linesOf(file())).toEqual([
      {
        step: 4,
        groups: [
          { task: "t", name: "agent 0", rewards: [1, 2], solved: 1 },
          { task: "t", name: "agent 1", rewards: [0.1235, null], solved: 1 },
          { task: "t", name: "agent 0", rewards: [0], solved: 0 },
          { task: "t", name: "agent 1", rewards: [0], solved: 0 },
        ],
      },
    ]);
  });

  test("has no line for a validation, nor for a step without episodes", () => {
    const logger = new GroupsFile(file());
    for (const it of [record("val", 1, [anEpisode()]), record("train", 1), record("train", 1, [])]) logger.log(it);
    expect(existsSync(file())).toBe(false);
  });
});

describe("a log file", () => {
  test("is cut back to a position, and a shorter one is left as it is", async () => {
    const file = join(dir, "deep", "metrics.jsonl");
    const logger = new MetricsFile(file);
    expect(await logger.position()).toBe(0);
    await logger.rewind(0);
    expect(logger.name).toBe("metrics.jsonl");
    logger.log(record("train", 1));
    const position = await logger.position();
    expect(position).toBe(readFileSync(file).length);
    logger.log(record("train", 2));
    await logger.rewind(position);
    await logger.rewind(position + 100);
    expect(linesOf(file)).toEqual([{ phase: "train", step: 1 }]);
  });

  test("goes to the same folder once made, and names the file that cannot be written", () => {
    mkdirSync(join(dir, "metrics.jsonl"), { recursive: true });
    const [logger] = jsonlFiles(dir);
    expect(() => logger!.log(record("train", 1))).toThrow(
      /^Cannot write the run's log: it is a folder, not a file \(EISDIR\)\. Name a file \(.*metrics\.jsonl\)\.$/,
    );
  });
});

describe("episode files", () => {
  const task = { id: "t/1", instruction: "1+1=", metadata: { b: [{ y: 1, x: null }], answer: 2 } };
  const episode = anEpisode({
    id: "t/1:0",
    task,
    task_index: 3,
    metrics: { turns: 2 },
    metadata: { seed: 7 },
    trajectories: [
      aTrajectory({
        steps: [
          aStep({ prompt: "1+1=", model_response: "2", reward: 1 }),
          aStep({ prompt: "p", observation: "seen", action: "move", done: false, chat_completions: [] }),
          aStep(),
        ],
      }),
    ],
  });
  // Keys sorted at every level: the hash does not depend on the order of a row's columns.
  const sorted = '{"answer":2,"b":[{"x":null,"y":1}],"id":"t/1","instruction":"1+1="}';
  const hash = createHash("sha256").update(sorted).digest("hex").slice(0, 8);
  const name = `episode_hash${hash}_idt_1_0_3.json`;

  test("hold an attempt in rLLM's form", () => {
    new EpisodeFiles(dir).log({ ...record("train", 5, [episode]), metrics: { "training/epoch": 2 } });
    expect(json("episodes", "train_step_5_epoch_2", name)).toEqual({
      training_step: 5,
      epoch: 2,
      episode_id: "t/1:0",
      task,
      task_hash: hash,
      is_correct: true,
      termination_reason: "env_done",
      metrics: { turns: 2 },
      metadata: { seed: 7 },
      trajectories: [
        {
          name: "solver",
          uid: "u",
          reward: 1,
          num_steps: 3,
          steps: [
            { observation: "1+1=", action: null, reward: 1, done: true, model_response: "2" },
            {
              ...{ observation: "seen", action: "move", reward: 0, done: false, model_response: "" },
              chat_completions: [],
            },
            { observation: null, action: null, reward: 0, done: true, model_response: "" },
          ],
        },
      ],
    });
  });

  test("have a bigint of the task as a number of all its digits", () => {
    const big = anEpisode({ task: { id: "t", instruction: "", metadata: { seed: 2n ** 64n } } });
    new EpisodeFiles(dir).log(record("val", 5, [big]));
    const [file] = json("episodes", "val_step_5_epoch_0", "batch_summary.json").episode_files;
    const text = readFileSync(join(dir, "episodes", "val_step_5_epoch_0", file), "utf8");
    expect(text).toContain('"metadata": {\n      "seed": 18446744073709551616\n    }');
  });

  test("come with a summary of the batch", () => {
    const wrong = anEpisode({ id: "u:0", is_correct: false, trajectories: [aTrajectory(), aTrajectory()] });
    const more = anEpisode({ id: "v:0", is_correct: false, trajectories: [] });
    new EpisodeFiles(dir).log(record("val", 5, [episode, wrong, more, anEpisode({ id: "w:0" })]));
    const summary = json("episodes", "val_step_5_epoch_0", "batch_summary.json");
    expect(summary).toEqual({
      training_step: 5,
      epoch: 0,
      mode: "val",
      num_episodes: 4,
      episode_files: [name, expect.any(String), expect.any(String), expect.any(String)],
      summary_stats: { total_correct: 2, total_incorrect: 2, accuracy: 0.5, avg_trajectories_per_episode: 1 },
    });
    const written = readdirSync(join(dir, "episodes", "val_step_5_epoch_0"));
    expect(written.sort()).toEqual([...summary.episode_files, "batch_summary.json"].sort());
  });

  test("of a step that a resumed run repeats replace the earlier ones", () => {
    const logger = new EpisodeFiles(dir);
    logger.log(record("train", 5, [episode]));
    logger.log(record("train", 5, [anEpisode()]));
    const names = readdirSync(join(dir, "episodes", "train_step_5_epoch_0"));
    expect(names).not.toContain(name);
    expect(names).toHaveLength(2);
  });

  test("are none for a record without episodes; a batch of none has a summary", () => {
    const logger = new EpisodeFiles(dir);
    logger.log(record("warmup", 1));
    expect(existsSync(dir)).toBe(false);
    logger.log(record("val", 1, []));
    expect(json("episodes", "val_step_1_epoch_0", "batch_summary.json").summary_stats).toEqual({
      total_correct: 0,
      total_incorrect: 0,
      accuracy: 0,
      avg_trajectories_per_episode: 0,
    });
  });
});

test("the report's facts: the folder's name, the last training step, when it began and ended", () => {
  const before = new Date().toISOString();
  const logger = new ReportFile(dir);
  logger.log({ ...record("train", 4), totalSteps: 4 });
  // Warm-up counts its own steps.
  logger.log({ ...record("warmup", 1), totalSteps: 50 });
  logger.finish();
  const facts = json("run.json");
  expect(facts).toMatchObject({ title: String(count - 1), subtitle: "", total_steps: 4, complete: true });
  expect([before, facts.started, facts.ended].sort()).toEqual([before, facts.started, facts.ended]);
});

test("a logger of the user's is opened by its name", () => {
  const logger = { log: () => {} };
  registerLogger("test-files", ({ dir: folder }) => ({ ...logger, name: folder }));
  expect(loggers.find("test-files")({ dir: "runs/a" })).toMatchObject({ name: "runs/a" });
  expect(() => loggers.find("test-fires")).toThrow(/\(rllm\.trainer\.logger\)\.$/);
});
