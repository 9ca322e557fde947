/** `grpu train rllm/backend=tinker` against our own server, over a socket: the loop over the wire is the local loop. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { LocalEngine } from "../../src/backend/local/engine.ts";
import { openDevice } from "../../src/compute/open.ts";
import { type Listening, listen } from "../../src/http/listen.ts";
import { createApp } from "../../src/serve/app.ts";
import { Checkpoints } from "../../src/serve/checkpoint/checkpoints.ts";
import { TinkerService } from "../../src/serve/service.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";

const KEY = "tml-not-to-be-told";
const FOLDER = sharedPath("models/stories260k");
const dir = temporaryFolder("cli-tinker");
let service: TinkerService;
let listening: Listening;

beforeAll(async () => {
  if (!hasShared) return;
  await startServer();
});

afterAll(async () => {
  if (!hasShared) return;
  await stopServer();
});

async function startServer(): Promise<void> {
  const engine = await LocalEngine.open({ device: await openDevice({ device: "cpu" }), folder: FOLDER });
  const checkpoints = await Checkpoints.open(join(dir, "service"));
  service = new TinkerService({ engine, checkpoints, modelNames: [FOLDER] });
  listening = await listen(createApp({ service, apiKey: KEY }), { host: "127.0.0.1", port: 0 });
}

async function stopServer(): Promise<void> {
  await service.stop();
  await listening.close();
  service.close();
}

/** Four tiny steps, of two minibatches each. */
const RUN = [
  "task.name=single_turn",
  "--import",
  "examples/stories/reward.ts",
  "task.reward=story",
  "data.train_files=examples/stories/stories_prompts.jsonl",
  "data.val_files=examples/stories/stories_prompts_val.jsonl",
  `model.name=${FOLDER}`,
  "model.lora_rank=4",
  "model.train_unembed=false",
  "training.learning_rate=5e-3",
  "training.num_minibatches=2",
  "training.weight_decay=0.01",
  "training.grad_clip_norm=1",
  "training.beta1=0.9",
  "training.beta2=0.95",
  "training.eps=1e-4",
  "training.seed=3",
  "rllm.data.train_batch_size=2",
  "rllm.data.val_batch_size=2",
  "rllm.data.max_prompt_length=32",
  "rllm.data.max_response_length=8",
  "rllm.rollout.n=4",
  "rllm.rollout.n_val=1",
  "rllm.algorithm.adv_estimator=grpo",
  "rllm.algorithm.rollout_correction.bypass_mode=false",
  "rllm.algorithm.kl_beta=0.05",
  "rllm.algorithm.lr_schedule=linear",
  "rllm.trainer.total_batches=4",
  "rllm.trainer.test_freq=4",
  "rllm.trainer.save_freq=2",
  "rllm.trainer.logger=[jsonl]",
];

const LOCAL = ["rllm/backend=local", "model.lora_alpha=32", "--device", "cpu"];

function train(name: string, args: readonly string[], env: Record<string, string | undefined> = {}) {
  const place = `training.default_local_dir=${join(dir, name)}`;
  return grpu(["train", ...RUN, place, ...args], {
    env: { TINKER_API_KEY: KEY, TINKER_BASE_URL: listening.url, ...env },
  });
}

function metricsOf(name: string): Record<string, number>[] {
  return readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
}

describe.skipIf(!hasShared)("grpu train rllm/backend=tinker", () => {
  test("does what the local backend does, step for step", async () => {
    const local = await train("local", LOCAL);
    expect(local.err).not.toMatch(/error/i);
    const remote = await train("remote", ["rllm/backend=tinker"]);
    expect([local.code, remote.code]).toEqual([0, 0]);
    const [here, there] = [metricsOf("local"), metricsOf("remote")];
    expect(there.map(({ phase, step }) => `${phase} ${step}`)).toEqual(
      here.map(({ phase, step }) => `${phase} ${step}`),
    );
    const names = Object.keys(there[1]!).filter((name) => /^(actor|reward|advantage|response_length)\//.test(name));
    expect(names).toEqual(expect.arrayContaining(["actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/lr"]));
    for (const [i, line] of there.entries())
      for (const name of names.filter((it) => here[i]![it] !== undefined))
        expect(line[name], `${name} of line ${i}`).toBeCloseTo(here[i]![name]!, 3);
    // What the service cannot tell is left out, not told as 0.
    expect(here[1]!["actor/entropy"]).toBeGreaterThan(0);
    expect(there[1]!["actor/entropy"]).toBeUndefined();
  });

  test("goes on from its last checkpoint on a server started anew as if nothing had stopped, and tells nobody the key", async () => {
    const args = [
      "rllm/backend=tinker",
      "rllm.algorithm.lr_schedule=constant",
      "rllm.algorithm.kl_beta=0",
      "rllm.trainer.test_freq=-1",
      "rllm.trainer.val_before_train=false",
    ];
    const first = await train("cut", [...args, "rllm.trainer.total_batches=2"]);
    await stopServer();
    await startServer();
    const second = await train("cut", args);
    const whole = await train("whole", args);
    expect([first.code, second.code, whole.code]).toEqual([0, 0, 0]);
    const steps = (name: string) =>
      metricsOf(name)
        .filter(({ phase }) => String(phase) === "train")
        .map((line) => [line.step, line["actor/pg_loss"], line["actor/grad_norm"]]);
    expect(steps("cut")).toEqual(steps("whole"));
    const told = [first, second, whole].map(({ out, err }) => out + err).join("") + textsOf(join(dir, "cut"));
    expect(told).not.toContain(KEY);
  });

  test.each([
    ["no key", {}, { TINKER_API_KEY: undefined }, /TINKER_API_KEY is not set in the environment/],
    ["another key", {}, { TINKER_API_KEY: "tml-wrong" }, /401/],
    ["a model that the service lacks", { args: ["model.name=Qwen/None"] }, {}, /Qwen\/None/],
  ])("ends with a reason: %s", async (_, { args = [] }: { args?: string[] }, env, message) => {
    const { code, err } = await train("none", ["rllm/backend=tinker", ...args], env);
    expect(code).not.toBe(0);
    expect(err).toMatch(message);
    expect(err).not.toContain("tml-wrong");
  });
});

/** All that a run has written. */
function textsOf(folder: string): string {
  return readdirSync(folder, { recursive: true })
    .map((name) => join(folder, String(name)))
    .filter((path) => statSync(path).isFile())
    .map((path) => readFileSync(path, "latin1"))
    .join("\n");
}
