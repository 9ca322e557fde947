/** `grpu train rllm/backend=tinker` against our own server, over a socket: the loop over the wire is the local loop. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared } from "../fixtures/shared.ts";
import { type RunningTinkerServer, STORY_RUN, startTinkerServer, TINKER_KEY } from "../fixtures/tinker_server.ts";

const dir = temporaryFolder("cli-tinker");
let server: RunningTinkerServer;

beforeAll(async () => {
  if (!hasShared) return;
  await startServer();
});

afterAll(async () => {
  if (!hasShared) return;
  await server.stop();
});

async function startServer(): Promise<void> {
  server = await startTinkerServer(join(dir, "service"));
}

const LOCAL = ["rllm/backend=local", "model.lora_alpha=32", "--device", "cpu"];

function train(name: string, args: readonly string[], env: Record<string, string | undefined> = {}) {
  const place = `training.default_local_dir=${join(dir, name)}`;
  return grpu(["train", ...STORY_RUN, place, ...args], {
    env: { TINKER_API_KEY: TINKER_KEY, TINKER_BASE_URL: server.url, ...env },
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
    await server.stop();
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
    expect(told).not.toContain(TINKER_KEY);
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
