/** `grpu sft` and `grpu dpo` on a Tinker service: the same steps as on this machine, over a socket. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared } from "../fixtures/shared.ts";
import { type RunningTinkerServer, STORY_MODEL, startTinkerServer, TINKER_KEY } from "../fixtures/tinker_server.ts";

const dir = temporaryFolder("row-tinker");
let server: RunningTinkerServer;

beforeAll(async () => {
  if (hasShared) server = await startTinkerServer(join(dir, "service"));
});
afterAll(async () => {
  if (hasShared) await server.stop();
});

const WORDS = ["dog", "cat", "ball", "park", "tree", "sun", "mom", "box"];
const FILES = {
  sft: rowsFile("sft.jsonl", (word) => ({ prompt: `The ${word}`, response: ` was big. The ${word} was red.` })),
  dpo: rowsFile("dpo.jsonl", (word) => ({ prompt: `The ${word}`, chosen: " was happy.", rejected: " went home." })),
};

function rowsFile(name: string, row: (word: string) => unknown): string {
  const file = join(dir, name);
  writeFileSync(file, WORDS.map((word) => `${JSON.stringify(row(word))}\n`).join(""));
  return file;
}

const RUN = [
  `model.path=${STORY_MODEL}`,
  ...["model.lora_rank=4", "model.train_unembed=false", "optim.lr=2e-3", "optim.eps=1e-4", "trainer.seed=3"],
  ...["data.train_batch_size=2", "data.max_length=48", "data.val_set_size=0.25", "trainer.logger=[jsonl]"],
  ...["trainer.total_training_steps=4", "trainer.test_freq=2", "trainer.save_freq=2"],
];
const LOCAL = ["model.lora_alpha=32", "--device", "cpu"];

type Command = keyof typeof FILES;

function run(command: Command, name: string, args: readonly string[]) {
  const own = [`data.train_files=${FILES[command]}`, `trainer.default_local_dir=${join(dir, name)}`];
  const env = { TINKER_API_KEY: TINKER_KEY, TINKER_BASE_URL: server.url };
  return grpu([command, ...RUN, ...own, ...args], { env });
}

function metricsOf(name: string): Record<string, number>[] {
  const lines = readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  return lines.map((line) => JSON.parse(line));
}

const MEASURED: Readonly<Record<Command, readonly string[]>> = {
  sft: ["train/loss", "train/grad_norm", "val/loss", "val/perplexity"],
  dpo: ["train/loss", "train/grad_norm", "rewards/margins", "val/loss", "val/rewards/accuracies"],
};

describe.skipIf(!hasShared).each(["sft", "dpo"] as const)("grpu %s backend=tinker", (command) => {
  const names = MEASURED[command];

  test("does what the local backend does, step for step", async () => {
    const local = await run(command, `${command}-local`, LOCAL);
    const remote = await run(command, `${command}-remote`, ["backend=tinker"]);
    expect([local.code, remote.code], local.err + remote.err).toEqual([0, 0]);
    expect(remote.err).toMatch(/saved {4}on the service; \S+global_step_4\/tinker\.json has the paths/);
    const [here, there] = [metricsOf(`${command}-local`), metricsOf(`${command}-remote`)];
    const phases = ["val 0", "train 1", "train 2", "val 2", "train 3", "train 4", "val 4"];
    for (const lines of [here, there]) expect(lines.map(({ phase, step }) => `${phase} ${step}`)).toEqual(phases);
    const seen = new Set<string>();
    for (const [i, line] of there.entries())
      for (const name of names.filter((it) => it in line)) {
        seen.add(name);
        expect(line[name], `${name} of line ${i}`).toBeCloseTo(here[i]![name]!, 3);
      }
    expect([...seen].sort()).toEqual([...names].sort());
    const losses = there.map((line) => line["val/loss"]).filter((it) => it !== undefined);
    expect(losses.at(-1)).toBeLessThan(losses[0]!);
  });

  test("continues from its last checkpoint as if nothing had stopped", async () => {
    const name = `${command}-cut`;
    const half = await run(command, name, ["backend=tinker", "trainer.total_training_steps=2"]);
    // The file that the run wrote has every setting, those of other backends too.
    const rest = await grpu([command, join(dir, name, "config.yaml"), "trainer.total_training_steps=4"], {
      env: { TINKER_API_KEY: TINKER_KEY, TINKER_BASE_URL: server.url },
    });
    expect([half.code, rest.code], half.err + rest.err).toEqual([0, 0]);
    expect(rest.err).toContain("Continuing from global_step_2");
    const steps = (from: string) =>
      metricsOf(from)
        .filter(({ phase }) => String(phase) === "train")
        .map((line) => [line.step, line["train/loss"], line["train/grad_norm"]]);
    for (const [i, line] of steps(name).entries())
      for (const [j, value] of line.entries()) expect(value).toBeCloseTo(steps(`${command}-remote`)[i]![j]!, 5);
  });
});

test.each([
  [["backend=tinker"], /model\.path/, "Cannot train on Tinker: model.path is not set"],
  [["backend=tinker", "model.path=m", "model.lora_rank=0"], /model\.lora_rank/, "the service trains adapters"],
  [["backend=tinker", "model.path=m", "model.lora_alpha=16"], /lora_alpha/, "it has no effect with backend=tinker"],
  [["backend=tinker", "model.path=m", "--device", "cpu"], /device/, "it has no effect with backend=tinker"],
  [["backend=tinker", "model.path=m", "model.dtype=bfloat16"], /model\.dtype/, "it has no effect with backend=tinker"],
  [["tinker_base_url=http://x"], /tinker_base_url/, "it has no effect with backend=local"],
  [["backend=verl"], /backend/, "local, tinker"],
])("%j is refused", async (args, path, why) => {
  for (const command of ["sft", "dpo"] as const) {
    const { code, err } = await grpu([command, `data.train_files=${FILES[command]}`, ...args], { env: {} });
    expect(code).not.toBe(0);
    expect(err).toMatch(path);
    expect(err).toContain(why);
  }
});
