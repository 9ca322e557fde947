/** Jobs that join a running batch of the sampling queue, and jobs that are done before it ends. */
import { describe, expect, test, vi } from "vitest";
import type { SampledSequence, SampleRequest } from "../../../src/engine/contract/backend.ts";
import type { BatchOptions, EnginePolicy } from "../../../src/engine/contract/engine.ts";
import { ConfigError, DeviceLostError } from "../../../src/leaves/errors.ts";
import { BatchCost } from "../../../src/serve/tinker/sample/batch_cost.ts";
import { SamplingQueue, type SamplingQueueOptions } from "../../../src/serve/tinker/sample/sampling_queue.ts";

const params = { max_tokens: 8, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
const sequence = (token: number): SampledSequence => ({
  tokens: [token],
  logprobs: [-1],
  finish_reason: "stop",
  weight_version: 0,
});

/** A queue over a policy that the test plays: `play` gets the first requests and the options of the batch. */
function openQueue(
  play: (requests: readonly SampleRequest[], options: BatchOptions) => Promise<SampledSequence[]>,
  {
    isOpen = true,
    scorePrompts = async () => [],
    ...options
  }: { isOpen?: boolean; scorePrompts?: EnginePolicy["scorePrompts"] } & Partial<SamplingQueueOptions> = {},
) {
  const policy: EnginePolicy = {
    bytes: 0,
    sample: (requests, options = {}) => play(requests, options),
    scorePrompts,
    release() {},
  };
  const queue = new SamplingQueue("toy", {
    onBatch: () => {},
    batchCost: new BatchCost(),
    ...(isOpen && { mayJoin: () => true }),
    ...options,
  });
  const source = { name: "toy", open: async () => policy, close() {} };
  const log: string[] = [];
  const push = (owner: string, seeds: readonly number[], scores?: { topk: number }) =>
    queue.push({
      owner,
      policy: source,
      scores,
      prompt: [1],
      requests: seeds.map((seed) => ({ prompt_ids: [1], params, seed })),
      done: ({ sequences }) => void log.push(`${owner} ${sequences.map(({ tokens }) => tokens[0]).join()}`),
      failed: (error) => void log.push(`${owner} failed: ${(error as Error).message}`),
    });
  return { queue, push, log };
}

describe("a batch that may be joined", () => {
  test("takes jobs of the session with the fewest tokens first, and each is done with its last sequence", async () => {
    const started: number[] = [];
    const { queue, push, log } = openQueue(async (requests, { more, onEnd }) => {
      expect(requests.map(({ seed }) => seed)).toEqual([10, 11]);
      push("a", [12]);
      push("b", [20]);
      await more?.((some) => started.push(...some.map(({ seed }) => seed)) > 0);
      onEnd?.(sequence(11), 1);
      expect(log).toEqual([]);
      onEnd?.(sequence(20), 2);
      expect(log).toEqual(["b 20"]);
      onEnd?.(sequence(10), 0);
      expect(log).toEqual(["b 20", "a 10,11"]);
      return [sequence(10), sequence(11), sequence(20), sequence(12)];
    });
    push("a", [10, 11]);
    const shares = await queue.turn("a");
    expect(started).toEqual([20, 12]);
    expect(log).toEqual(["b 20", "a 10,11", "a 12"]);
    // A prompt token for each job, and a token for each sequence.
    expect([...(shares ?? [])]).toEqual([
      ["a", 3 + 2],
      ["b", 2],
    ]);
    expect(queue.hasWork()).toBe(false);
  });

  test("takes all requests of a job, and leaves what has no room for the next batch", async () => {
    let batches = 0;
    const { queue, push, log } = openQueue(async (requests, { more }) => {
      if (++batches === 1) {
        push("b", [20]);
        await more?.(() => false);
        expect(queue.lengthOf("b")).toBe(1);
        queue.clear();
        push("c", [30, 31]);
        const asked: number[] = [];
        await more?.((some) => asked.push(...some.map(({ seed }) => seed)) > 0);
        expect(asked).toEqual([30, 31]);
        return [10, 30, 31].map(sequence);
      }
      return requests.map(({ seed }) => sequence(seed));
    });
    push("a", [10]);
    await queue.turn("a");
    expect(log).toEqual(["a 10", "c 30,31"]);
    expect([batches, queue.length]).toEqual([1, 0]);
  });

  test("is closed where more wait than run and it has no room: the next one takes more", async () => {
    let offered = 0;
    const { queue, push } = openQueue(async (requests, { more }) => {
      for (const [owner, seed] of [["b", 20] as const, ["c", 30] as const]) push(owner, [seed]);
      for (let chunk = 0; chunk < 3; chunk++)
        await more?.(() => {
          offered++;
          return false;
        });
      return requests.map(({ seed }) => sequence(seed));
    });
    push("a", [10]);
    await queue.turn("a");
    expect([offered, queue.length]).toEqual([1, 2]);
  });

  test("a request that cannot be sampled fails alone", async () => {
    const { queue, push, log } = openQueue(async (requests, { more }) => {
      push("b", [20]);
      push("c", [30]);
      const seeds = requests.map(({ seed }) => seed);
      await more?.((some) => {
        const { seed } = some[0]!;
        if (seed === 20) throw new Error("no such token");
        return seeds.push(seed) > 0;
      });
      return seeds.map(sequence);
    });
    push("a", [10]);
    await queue.turn("a");
    expect(log).toEqual(["b failed: no such token", "a 10", "c 30"]);
  });

  test("a failure of the batch fails only the jobs that are not done", async () => {
    const { queue, push, log } = openQueue(async (_, { onEnd }) => {
      onEnd?.(sequence(20), 1);
      throw new Error("device lost");
    });
    push("a", [10]);
    push("b", [20]);
    await queue.turn("a");
    expect(log).toEqual(["b 20", "a failed: device lost"]);
  });
});

describe("the room that a batch asks for", () => {
  test("is for what ran and waited together, and is forgotten within some batches", async () => {
    const asked: (number | undefined)[] = [];
    let arrives = true;
    const { queue, push } = openQueue(async (requests, { more, expected }) => {
      asked.push(expected);
      if (arrives) for (let i = 0; i < 9; i++) push("b", [i]);
      arrives = false;
      await more?.(() => false);
      return requests.map(({ seed }) => sequence(seed));
    });
    for (let batch = 0; batch < 4; batch++) {
      queue.clear();
      push("a", [10]);
      await queue.turn("a");
    }
    expect(asked).toEqual([1, 8, 7, 6]);
  });
});

describe("a batch ends under load", () => {
  test.each([
    ["sequences", { sequences: 3, ms: 1e6 }, 3],
    ["time", { sequences: 1000, ms: -1 }, 1],
  ])("after its most %s", async (_, joined, most) => {
    const { queue, push, log } = openQueue(
      async (requests, { more, onEnd }) => {
        const seeds = requests.map(({ seed }) => seed);
        for (let seed = 11; seed < 20; seed++) {
          push("a", [seed]);
          await more?.((some) => seeds.push(...some.map(({ seed }) => seed)) > 0);
        }
        for (const [i, seed] of seeds.entries()) onEnd?.(sequence(seed), i);
        return seeds.map(sequence);
      },
      { joined },
    );
    push("a", [10]);
    await queue.turn("a");
    expect(log).toHaveLength(most);
    expect(queue.length).toBe(10 - most);
  });
});

describe("a request that the policy refuses", () => {
  test.each([true, false])("fails alone, and the others are sampled (joinable %s)", async (isOpen) => {
    const { queue, push, log } = openQueue(
      async (requests, { onEnd }) => {
        const bad = requests.findIndex(({ seed }) => seed % 10 === 1);
        if (bad >= 0) throw new ConfigError("Cannot sample: no such token.", { path: `requests[${bad}]` });
        const last = requests.length - 1;
        onEnd?.(sequence(requests[last]!.seed), last);
        return requests.map(({ seed }) => sequence(seed));
      },
      { isOpen },
    );
    push("a", [10, 12]);
    push("b", [20, 21]);
    push("c", [31]);
    push("d", [40]);
    const shares = await queue.turn("a");
    expect(log.filter((line) => !line.includes("failed")).sort()).toEqual(["a 10,12", "d 40"]);
    expect(log.filter((line) => /^[bc] failed: Cannot sample: no such token/.test(line))).toHaveLength(2);
    expect([...(shares ?? [])]).toEqual([
      ["a", 3],
      ["b", 0],
      ["c", 0],
      ["d", 2],
    ]);
  });

  test("alone has the policy's error, and one that names no request fails all", async () => {
    const { queue, push, log } = openQueue(async (requests) => {
      if (requests.length > 1) throw new ConfigError("no memory", { path: "memory_budget_bytes" });
      throw new ConfigError("too long", { path: "requests[0]" });
    });
    push("a", [10]);
    await queue.turn("a");
    push("a", [10]);
    push("b", [20]);
    await queue.turn("a");
    expect(log.map((line) => line.slice(0, 12))).toEqual(["a failed: to", "a failed: no", "b failed: no"]);
  });
});

test("what the caller's code throws fails its job, and no other", async () => {
  const { queue, push, log } = openQueue(async (requests, { onFail, onEnd }) => {
    onFail?.(new Error("it threw"), 1);
    onEnd?.(sequence(11), 0);
    return requests.map(({ seed }) => sequence(seed));
  });
  push("a", [10]);
  push("b", [20]);
  await queue.turn("a");
  expect(log).toEqual(["b failed: it threw", "a 11"]);
});

test("the time in which others have the device is not the batch's", async () => {
  const batchCost = new BatchCost();
  const observe = vi.spyOn(batchCost, "observe");
  const { queue, push } = openQueue(
    async (requests, { more }) => {
      await more?.(() => false);
      return requests.map(({ seed }) => sequence(seed));
    },
    { batchCost, mayJoin: () => new Promise((resolve) => setTimeout(() => resolve(true), 100)) },
  );
  push("a", [10]);
  await queue.turn("a");
  expect(observe.mock.calls[0]![1]).toBeLessThan(90);
});

test("a closed batch is not asked", async () => {
  let given: BatchOptions = {};
  const { queue, push } = openQueue(
    async (requests, options) => {
      given = options;
      return requests.map(({ seed }) => sequence(seed));
    },
    { isOpen: false },
  );
  push("a", [10]);
  await queue.turn("a");
  expect([given.more, given.onEnd]).toEqual([undefined, undefined]);
});

describe("prompts that are scored together", () => {
  const scoresOf = (count: number) => Array.from({ length: count }, () => ({ logprobs: Float32Array.of(Number.NaN) }));

  test("one that cannot be scored fails alone, and is not sampled from", async () => {
    const asked: number[] = [];
    let sampled: number[] = [];
    let isBroken = false;
    const { queue, push, log } = openQueue(
      async (requests) => {
        sampled = requests.map(({ seed }) => seed);
        return requests.map(({ seed }) => sequence(seed));
      },
      {
        isOpen: false,
        scorePrompts: async (prompts) => {
          asked.push(prompts.length);
          isBroken = prompts.length > 1 || asked.length === 3;
          if (isBroken) throw new Error("out of memory");
          return scoresOf(prompts.length);
        },
      },
    );
    push("a", [10], { topk: 0 });
    push("b", [20, 21], { topk: 0 });
    push("c", [30]);
    await queue.turn("a");
    expect(asked).toEqual([2, 1, 1]);
    expect(sampled).toEqual([10, 30]);
    expect(log).toEqual(["b failed: out of memory", "a 10", "c 30"]);
  });

  test("a lost device fails all of them at once", async () => {
    let asked = 0;
    const { queue, push, log } = openQueue(async () => [], {
      isOpen: false,
      scorePrompts: async () => {
        asked++;
        throw new DeviceLostError("reset");
      },
    });
    push("a", [10], { topk: 0 });
    push("b", [20], { topk: 0 });
    await queue.turn("a");
    expect([asked, log]).toEqual([
      1,
      ["a", "b"].map((who) => expect.stringContaining(`${who} failed: Cannot continue: the GPU device was lost`)),
    ]);
  });
});
