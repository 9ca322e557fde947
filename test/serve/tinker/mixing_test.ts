/** Jobs for several policies in one batch of the sampling queue. */
import { expect, test } from "vitest";
import type { EnginePolicy, PolicyRequest } from "../../../src/engine/contract/engine.ts";
import { DeviceLostError, OutOfMemoryError } from "../../../src/leaves/errors.ts";
import type { JobPolicy } from "../../../src/serve/tinker/sample/batch.ts";
import { BatchCost } from "../../../src/serve/tinker/sample/batch_cost.ts";
import { SamplingQueue } from "../../../src/serve/tinker/sample/sampling_queue.ts";
import { Scheduler } from "../../../src/serve/tinker/scheduler.ts";

const params = { max_tokens: 8, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };

/**
 * A queue over policies of the test's making; `log` has batches, results, openings and closings.
 * @param play.ends places of the sequences that are complete before others join.
 */
function setUp({ joinLater = () => {}, ends = [] }: { joinLater?: () => void; ends?: readonly number[] } = {}) {
  const log: string[] = [];
  const names = new Map<EnginePolicy, string>();
  const drawn = ({ seed }: PolicyRequest) => ({
    tokens: [seed],
    logprobs: [-1],
    finish_reason: "stop" as const,
    weight_version: 0,
  });
  function policyOf(name: string, { most = 8, kind = "adapter" }: { most?: number; kind?: string } = {}): EnginePolicy {
    const own: EnginePolicy & { kind: string } = {
      kind,
      bytes: 0,
      mostMixed: most,
      mixes: (other) => (other as typeof own).kind === kind,
      async sample(requests, options) {
        const all = [...requests];
        joinLater();
        for (const place of ends) options?.onEnd?.(drawn(all[place]!), place);
        await options?.more?.((some) => all.push(...some) > 0);
        log.push(`batch ${all.map(({ seed, policy = own }) => `${names.get(policy)}${seed}`).join(" ")}`);
        return all.map(drawn);
      },
      scorePrompts: async (prompts) => {
        log.push(`score ${name} ${prompts.length}`);
        return prompts.map(() => ({ logprobs: Float32Array.of(Number.NaN) }));
      },
      release() {},
    };
    names.set(own, name);
    return own;
  }
  function source(name: string, of: { most?: number; kind?: string; fails?: () => Error | undefined } = {}): JobPolicy {
    const policy = policyOf(name, of);
    return {
      name,
      async open() {
        const error = of.fails?.();
        if (error) throw error;
        log.push(`open ${name}`);
        return policy;
      },
      close: () => void log.push(`close ${name}`),
    };
  }
  const queue = new SamplingQueue("toy", { onBatch: () => {}, batchCost: new BatchCost(), mayJoin: () => true });
  const push = (policy: JobPolicy, seed: number, { owner = `${seed}`, topk }: { owner?: string; topk?: number } = {}) =>
    queue.push({
      owner,
      policy,
      prompt: [1],
      scores: topk === undefined ? undefined : { topk },
      requests: [{ prompt_ids: [1], params, seed }],
      done: ({ sequences }) => void log.push(`done ${sequences[0]!.tokens[0]}`),
      failed: (error) => void log.push(`failed ${seed}: ${(error as Error).message}`),
    });
  return { log, queue, push, source };
}

const batches = (log: readonly string[]) => log.filter((line) => /batch|failed/.test(line));

test("jobs of policies that mix run together; each is opened once, and closed after the batch", async () => {
  const { log, queue, push, source } = setUp();
  const [a, b] = [source("a"), source("b")];
  for (const [policy, seed] of [[a, 1] as const, [b, 2] as const, [a, 3] as const]) push(policy, seed);
  await queue.turn("1");
  expect(log).toEqual(["open a", "open b", "batch a1 b2 a3", "done 1", "done 2", "done 3", "close a", "close b"]);
});

test.each([
  ["they are of another kind", { kind: "full" }, {}],
  ["one policy allows no other", { most: 1 }, {}],
  ["the first allows no other", {}, { most: 1 }],
  ["memory is short for both", { fails: shortOnce() }, {}],
])("a job waits for a turn of its own where %s", async (_, other, first) => {
  const { log, queue, push, source } = setUp();
  const [a, b] = [source("a", first), source("b", other)];
  push(a, 1);
  push(b, 2, { owner: "x" });
  push(b, 3, { owner: "x" });
  push(a, 4);
  await queue.turn("1");
  expect(queue.length).toBe(2);
  await queue.turn("x");
  expect(batches(log)).toEqual(["batch a1 a4", "batch b2 b3"]);
  const count = (what: string) => log.filter((line) => line.startsWith(what)).length;
  expect(count("open")).toBe(count("close"));
});

function shortOnce() {
  let isShort = true;
  return () => {
    if (!isShort) return undefined;
    isShort = false;
    return new OutOfMemoryError("no memory", { label: "adapter", bytes: 8 });
  };
}

test("a policy that cannot be opened fails its own jobs, and is tried once a turn", async () => {
  let tries = 0;
  const { log, queue, push, source } = setUp();
  const fails = () => new Error(`damaged, try ${++tries}`);
  const [a, b] = [source("a", { fails }), source("b")];
  for (const [policy, seed] of [[a, 1] as const, [b, 2] as const, [a, 3] as const]) push(policy, seed);
  await queue.turn("1");
  expect(batches(log)).toEqual(["failed 1: damaged, try 1", "failed 3: damaged, try 1", "batch b2"]);
});

test("a lost device fails all jobs", async () => {
  const { log, queue, push, source } = setUp();
  push(source("a"), 1);
  push(source("b", { fails: () => new DeviceLostError("reset") }), 2);
  await queue.turn("1");
  expect(batches(log).map((line) => line.slice(0, 8))).toEqual(["failed 1", "failed 2"]);
  expect(log).toContain("close a");
});

test("jobs of further policies join a running batch", async () => {
  const { log, queue, push, source } = setUp({ joinLater: () => push(b, 2) });
  const [a, b] = [source("a"), source("b")];
  push(a, 1);
  await queue.turn("1");
  expect(batches(log)).toEqual(["batch a1 b2"]);
  expect(log.slice(-2)).toEqual(["close a", "close b"]);
});

test.each([
  ["of a policy that none runs with", [1], "batch a1 b2 c3"],
  ["not of one that runs", [], "batch a1 b2"],
  ["not of the first, which samples the batch", [0], "batch a1 b2"],
])("a further policy takes the place %s", async (_, ends, first) => {
  const { log, queue, push, source } = setUp({ joinLater: () => queue.length === 0 && push(c, 3), ends });
  const [a, b, c] = ["a", "b", "c"].map((name) => source(name, { most: 2 })) as [JobPolicy, JobPolicy, JobPolicy];
  push(a, 1);
  push(b, 2);
  await queue.turn("1");
  expect(batches(log)[0]).toBe(first);
  expect(log.filter((line) => line === "close b")).toHaveLength(1);
  expect(log.indexOf("close b") < log.indexOf("open c")).toBe(first.includes("c3"));
});

test("prompts are scored by their own policy", async () => {
  const { log, queue, push, source } = setUp();
  const [a, b] = [source("a"), source("b")];
  for (const [policy, seed] of [[a, 1] as const, [b, 2] as const, [a, 3] as const]) push(policy, seed, { topk: 0 });
  await queue.turn("1");
  expect(log.filter((line) => line.startsWith("score"))).toEqual(["score a 2", "score b 1"]);
});

test("a batch takes on work while its sessions have used no more time than those that wait", async () => {
  let now = 0;
  const scheduler = new Scheduler(() => now);
  const goes: boolean[] = [];
  const waiting = new Set(["s"]);
  const sampling = {
    name: "sampling",
    owners: () => waiting,
    async turn() {
      for (const ms of [10, 10]) {
        now += ms;
        goes.push(await scheduler.pause(new Map([["s", 1]])));
      }
      // The time since then is charged at the end.
      now += 5;
      waiting.clear();
      return new Map([["s", 1]]);
    },
  };
  const trainers = new Set(["t"]);
  let turns = 0;
  const training = {
    name: "training",
    owners: () => trainers,
    async turn() {
      now += 15;
      // The sampler starts level with the trainer, which has had 15 ms when its turn ends.
      if (turns++ === 0) scheduler.wake(sampling, "s");
      else trainers.clear();
      return undefined;
    },
  };
  scheduler.wake(training, "t");
  await scheduler.idle();
  expect(goes).toEqual([true, false]);
  expect(scheduler.busyMs).toBe(now);
});
