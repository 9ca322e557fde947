/** `grpu train rllm/backend=tinker` against our own server, over a socket: the loop over the wire is the local loop. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { listen } from "../../src/leaves/http/listen.ts";
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

/** Replies that are long enough for different rewards, which alone move the weights without a KL term. */
const REWARDED = ["rllm.algorithm.kl_beta=0", "rllm.data.max_response_length=24"];

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

  test("trains asynchronously with inflight samplers", async () => {
    const { code, err } = await train("inflight", [
      ...["rllm/backend=tinker", "tinker_sampling_client_kind=inflight", "rllm.workflow.raise_on_error=false"],
      ...["rllm.async_training.enable=true", "rllm.async_training.mini_batch_size=4", "rllm.trainer.total_batches=2"],
      ...REWARDED,
    ]);
    expect(code, err).toBe(0);
    const steps = metricsOf("inflight").filter(({ phase }) => `${phase}` === "train");
    expect(steps.map(({ step }) => step)).toEqual([1, 2]);
    for (const step of steps) expect(step["actor/grad_norm"]).toBeGreaterThan(0);
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

  test("does what the local backend does at another temperature", async () => {
    const args = ["rllm.rollout.train.temperature=0.7", ...REWARDED, "rllm.trainer.total_batches=2"];
    const local = await train("cool-local", [...LOCAL, ...args]);
    const remote = await train("cool-remote", ["rllm/backend=tinker", ...args]);
    expect([local.code, remote.code], remote.err).toEqual([0, 0]);
    const [here, there] = [metricsOf("cool-local"), metricsOf("cool-remote")];
    for (const [i, line] of there.entries())
      for (const name of ["actor/pg_loss", "actor/grad_norm", "actor/ppo_kl"])
        if (here[i]![name] !== undefined) expect(line[name], `${name} of line ${i}`).toBeCloseTo(here[i]![name]!, 3);
    expect(there.some((line) => line["actor/grad_norm"]! > 0)).toBe(true);
  });

  test("refuses another temperature where the service announces none, before anything is sampled", async () => {
    const asked: string[] = [];
    const older = await listen(
      {
        fetch: async (request: Request) => {
          const path = new URL(request.url).pathname;
          asked.push(path);
          const { method, headers } = request;
          const body = method === "GET" ? null : await request.arrayBuffer();
          const reply = await fetch(server.url + path, { method, headers, body });
          if (!path.endsWith("get_server_capabilities")) return reply;
          const { supported_models } = (await reply.json()) as { supported_models: object[] };
          return Response.json({ supported_models });
        },
      },
      { host: "127.0.0.1", port: 0 },
    );
    const args = ["rllm/backend=tinker", "rllm.rollout.train.temperature=0.7", "rllm.algorithm.kl_beta=0"];
    const { code, err } = await train("none", args, { TINKER_BASE_URL: older.url });
    await older.close();
    expect(code).not.toBe(0);
    expect(err).toContain(
      "Cannot train on samples at temperature 0.7: the service computes log-probs at temperature 1",
    );
    expect(err).toContain("Set rllm.rollout.train.temperature=1");
    expect(asked.filter((path) => path.endsWith("/asample"))).toEqual([]);
  });

  test("trains with stable_reinforce where the server has a method for it, as the local backend does, and says so where it has none", async () => {
    const args = [
      "rllm/backend=tinker",
      "rllm.algorithm.loss_fn=stable_reinforce",
      "+rllm.algorithm.loss_args.kl_coeff=0.01",
      ...REWARDED,
      "training.num_minibatches=1",
      "rllm.trainer.total_batches=3",
    ];
    const stable = await startTinkerServer(join(dir, "stable-service"), { stableReinforce: "score_centering" });
    const served = await train("stable", args, { TINKER_BASE_URL: stable.url });
    await stable.stop();
    expect(served.code, served.err).toBe(0);
    const lines = metricsOf("stable").filter(({ phase }) => String(phase) === "train");
    expect(lines).toHaveLength(3);
    for (const line of lines) {
      expect(line["actor/grad_norm"]).toBeGreaterThan(0);
      expect(line["actor/loss"]).toBeCloseTo(line["train/loss/sum"]!, 6);
      // The sampler and the trainer compute the same.
      expect(Math.abs(line["optim/kl_sample_train_v1"]!)).toBeLessThan(1e-4);
    }
    const local = await train("stable-local", [...LOCAL, ...args.slice(1)]);
    expect(local.code, local.err).toBe(0);
    const own = metricsOf("stable-local").filter(({ phase }) => String(phase) === "train");
    for (const [i, line] of own.entries())
      for (const name of ["actor/loss", "actor/grad_norm", "reward/default/mean"])
        if (lines[i]![name] !== undefined) expect(line[name], `${name} of ${i}`).toBeCloseTo(lines[i]![name]!, 3);
    // The first step begins at the same weights.
    for (const name of ["actor/loss", "actor/grad_norm"])
      expect(Math.abs(own[0]![name]! - lines[0]![name]!), name).toBeLessThan(1e-5);
    const refused = await train("not-stable", args);
    expect(refused.code).not.toBe(0);
    expect(refused.err).toContain("--stable-reinforce score_centering");
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
