/** Runs every block of docs/limits.md as it stands there, and looks whether it did what the page says. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, test } from "vitest";
import { grpu } from "./fixtures/cli.ts";
import { temporaryFolder } from "./fixtures/folder.ts";
import { SMALL_SETTINGS } from "./fixtures/small_run.ts";

const PAGE = readFileSync(fileURLToPath(new URL("../docs/limits.md", import.meta.url)), "utf8");

interface Block {
  readonly language: string;
  readonly file: string | undefined;
  readonly text: string;
}

const BLOCKS: readonly Block[] = [...PAGE.matchAll(/^```(\w+) ?(\S+)?\n([\s\S]*?)^```$/gm)].map(
  ([, language, file, text]) => ({ language: language!, file, text: text! }),
);

/** A run of seconds on the reference device. */
const SMALL = [
  ...SMALL_SETTINGS,
  "rllm.trainer.total_batches=2",
  "rllm.trainer.val_before_train=false",
  "rllm.trainer.test_freq=0",
];

/** Two calls of the model, each with a reward of its own; rewards differ at random. */
const TWO_STEPS = `import { registerEnvironment } from "grpu";
registerEnvironment({ name: "two_calls", describe: "two calls", train_files: "examples/arithmetic/arithmetic_train.jsonl",
  alphabet: "0123456789+=", reward: (text) => text.length / 4, rollout: (reward) => async (task, policy) => {
    const first = await policy.complete(task.instruction);
    const second = await policy.complete([...first.prompt_ids, ...first.response_ids]);
    const worth = async (step) => ({ ...step, reward: await reward(step.model_response, task) });
    return { trajectories: [{ name: "arithmetic", steps: [await worth(first), await worth(second)] }] };
  } });`;

const dir = temporaryFolder("docs");
beforeAll(() => {
  for (const { file, text } of BLOCKS) if (file) writeFileSync(join(dir, file), text);
  writeFileSync(join(dir, "two_steps.ts"), TWO_STEPS);
  writeFileSync(
    join(dir, "run.yaml"),
    readFileSync(fileURLToPath(new URL("../examples/arithmetic/run.yaml", import.meta.url)), "utf8"),
  );
});

/** A shell's words: quotes keep what is inside together. */
function words(line: string): string[] {
  return [...line.matchAll(/(?:'[^']*'|[^\s'])+/g)].map(([word]) => word.replaceAll("'", ""));
}

let runs = 0;
/** Runs a command of the page, its files in this test's folder; the lines of its metrics. */
async function runCommand(command: string, more: readonly string[] = []) {
  const [program, ...args] = words(command.trim());
  expect(program).toBe("grpu");
  const folder = join(dir, `run_${runs++}`);
  mkdirSync(folder);
  const placed = args.map((word) => (/^\w+\.(ts|yaml)$/.test(word) ? join(dir, word) : word));
  const [name, config, ...rest] = placed;
  const { code, err } = await grpu([
    name!,
    config!,
    ...SMALL,
    ...more,
    ...rest,
    `training.default_local_dir=${folder}`,
  ]);
  expect(err).not.toContain("Cannot");
  expect(code, err).toBe(0);
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  const train = lines.map((line) => JSON.parse(line)).filter((line) => line.phase === "train");
  expect(train).toHaveLength(2);
  return { train, folder };
}

type Lines = Readonly<Record<string, number>>[];

const TWO_CALLS = ["--import", "two_steps.ts", "task.name=two_calls", "rllm.data.max_prompt_length=12"];

const EXPECTED: readonly [command: RegExp, check: (train: Lines, folder: string) => void, more?: readonly string[]][] =
  [
    [
      /drop_solved/,
      ([first]) => {
        expect(first!["time/drop_solved"]).toBeGreaterThanOrEqual(0);
        expect(first).not.toHaveProperty(["time/reject"]);
        expect(first!["actor/lr"]).toBeGreaterThan(0);
      },
    ],
    [
      /timid/,
      ([first, second]) => {
        expect(first!["actor/lr"]).toBeGreaterThan(0);
        expect(second).not.toHaveProperty(["actor/lr"]);
        expect(second!["timid/skipped"]).toBe(1);
      },
    ],
    [
      /two_hardest/,
      ([first]) => expect(first).toMatchObject({ "batch/groups_before_filter": 4, "batch/groups_after_filter": 2 }),
    ],
    [
      /clip_rewards/,
      ([first]) => {
        expect(first!["reward/arithmetic/max"]).toBe(0.5);
        expect(first).not.toHaveProperty(["time/name_trajectories"]);
      },
      TWO_CALLS,
    ],
    [/dice/, ([first]) => expect(first!["reward/arithmetic/mean"]).toBeGreaterThanOrEqual(0)],
    [/loss_fn=soft/, ([first]) => expect(first!["soft/up"]).toBeTypeOf("number")],
    [
      /whole_batch/,
      ([first]) => {
        expect(first).toMatchObject({ "groups/num_groups": 1, "groups/max_group_size": 16 });
      },
    ],
    [
      /adv_estimator=above/,
      ([first]) => {
        expect(first!["reward/arithmetic/max"]).toBeGreaterThan(0.25);
        expect(first!["advantage/arithmetic/max"]).toBeCloseTo((first!["reward/arithmetic/max"]! - 0.25) ** 2, 6);
      },
      TWO_CALLS,
    ],
    [/per_step/, ([first]) => expect(first!["batch/arithmetic/total"]).toBe(4 * 2), TWO_CALLS],
    [
      /rewards\]/,
      (train, folder) => {
        const text = readFileSync(join(folder, "rewards.txt"), "utf8");
        expect(text).toContain(`train 2 ${train[1]!["reward/arithmetic/mean"]}\n`);
      },
    ],
    [
      /train_files=made/,
      (_, folder) => {
        const text = readFileSync(join(folder, "groups.jsonl"), "utf8");
        const tasks = [...text.matchAll(/"task":"(made-\d)"/g)].map(([, task]) => task);
        expect(new Set(tasks).size).toBe(8);
      },
    ],
  ];

const COMMANDS = BLOCKS.filter(({ language }) => language === "sh").map(({ text }) => text);

test("every command of the page has an expectation, and every module a command", () => {
  expect(COMMANDS).toHaveLength(EXPECTED.length);
  for (const { file } of BLOCKS) {
    if (file)
      expect(
        COMMANDS.some((command) => command.includes(`--import ${file}`)),
        file,
      ).toBe(true);
  }
});

test("modules are short", () => {
  for (const { file, text } of BLOCKS) if (file) expect(text.trim().split("\n").length, file).toBeLessThanOrEqual(3);
});

test.each(EXPECTED)("%s", async (which, check, more = []) => {
  const command = COMMANDS.find((text) => which.test(text));
  const extra = more.map((word) => (word.endsWith(".ts") ? join(dir, word) : word));
  const { train, folder } = await runCommand(command as string, [...extra, "warmup.steps=0"]);
  check(train, folder);
});
