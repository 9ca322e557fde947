/** A served model: batches that callers join, fair turns, weights that are replaced, a device that is lost. */
import { describe, expect, onTestFinished, test } from "vitest";
import type { SampleRequest, SamplingParams } from "../../../src/engine/contract/backend.ts";
import { Serving, type ServingOptions } from "../../../src/serve/openai/serving.ts";
import { TextEngine, type TextEngineOptions } from "../../fixtures/text_engine.ts";

const DEFAULTS = { max_tokens: 16, temperature: 1, top_p: 1, top_k: 0 };

interface DrawOptions extends Partial<Omit<SampleRequest, "params">> {
  readonly params?: Partial<SamplingParams>;
  readonly owner?: string;
  readonly signal?: AbortSignal;
  readonly model?: string;
}

async function open({
  engine: engineOptions,
  ...options
}: { engine?: TextEngineOptions } & Partial<Omit<ServingOptions, "engine">> = {}) {
  const engine = new TextEngine(engineOptions);
  const lines: string[] = [];
  const serving = new Serving({
    engine: engine,
    tokenizer: engine.tokenizer,
    models: { letters: { weightVersion: 7 } },
    defaults: DEFAULTS,
    log: (line) => void lines.push(line),
    ...options,
  });
  await serving.open();
  onTestFinished(async () => {
    await serving.stop({ graceMs: 0 });
    serving.close();
  });
  const draw = async ({ owner = "a", signal, model, params, ...more }: DrawOptions = {}) => {
    const prompt_ids = more.prompt_ids ?? [1, 2];
    const request = { seed: 1, ...more, prompt_ids, params: serving.paramsFor(prompt_ids, params ?? {}) };
    return serving.draw(serving.model(model)!, { request, call: { owner, signal } });
  };
  const text = (tokens: readonly number[]) => engine.tokenizer.decode(tokens);
  const expected = (seed: number, more: { dir?: string; max_tokens?: number } = {}) =>
    engine.expected(
      { seed, prompt_ids: [1, 2], params: { ...DEFAULTS, stop_token_ids: [], ...more } },
      more.dir ?? "base",
    ).text;
  return { engine, serving, lines, draw, text, expected };
}

/** Holds the device. @returns what lets it go on */
function hold(engine: TextEngine): () => void {
  let release = () => {};
  engine.gate = new Promise((resolve) => {
    release = resolve;
  });
  return release;
}

const turns = (count = 5) => new Promise((resolve) => setTimeout(resolve, count));

describe("requests", () => {
  test("of many callers share a batch, and those that come later join it", async () => {
    const { engine, draw, text, expected } = await open();
    const release = hold(engine);
    const first = [1, 2, 3].map((seed) => draw({ seed, owner: `caller ${seed}` }));
    await turns();
    const later = [4, 5].map((seed) => draw({ seed, owner: `caller ${seed}` }));
    release();
    const replies = await Promise.all([...first, ...later]);
    expect(replies.map(({ tokens }) => text(tokens))).toEqual([1, 2, 3, 4, 5].map((seed) => expected(seed)));
    expect(engine.calls).toEqual(["open base", "sample 3", "join", "join"]);
    expect(new Set(replies.map(({ weight_version }) => weight_version))).toEqual(new Set([7]));
  });

  test("are answered when their own sequence ends", async () => {
    const { draw, engine } = await open({ engine: { mostTokens: 200 } });
    const ends: string[] = [];
    const byLength = [...Array(20).keys()].sort((a, b) => lengthOf(engine, a) - lengthOf(engine, b));
    const [short, long] = [byLength[0]!, byLength.at(-1)!];
    const params = { max_tokens: 200 };
    await Promise.all([
      draw({ seed: long, params }).then(() => ends.push("long")),
      draw({ seed: short, params }).then(() => ends.push("short")),
    ]);
    expect(ends).toEqual(["short", "long"]);
  });

  test("report their tokens while they run, each once", async () => {
    const { draw } = await open();
    const parts: number[][] = [];
    const { tokens } = await draw({ seed: 3, onTokens: (some) => void parts.push([...some]) });
    expect(parts.length).toBeGreaterThan(1);
    expect(parts.flat()).toEqual(tokens);
  });

  test("get the defaults, the room of the context, and the model's end tokens", async () => {
    const { draw, engine } = await open({ engine: { contextLength: 10, mostTokens: 100 } });
    const long = { prompt_ids: [1, 2, 3, 4, 5, 6, 7], seed: 2 };
    expect((await draw(long)).tokens).toHaveLength(3);
    expect((await draw({ ...long, params: { max_tokens: 2 } })).tokens).toHaveLength(2);
    await expect(draw({ prompt_ids: new Array(10).fill(1) })).rejects.toThrow(
      /prompt has 10 tokens, and the model's context holds 10/,
    );
    expect(engine.eosTokenIds).toHaveLength(1);
  });

  test.each([
    ["an empty prompt", []],
    ["a token beyond the vocabulary", [1, 1e6]],
    ["a negative token", [-1]],
    ["a token that is no whole number", [1.5]],
  ])("with %s are refused before they share a batch", async (_, prompt_ids) => {
    const { draw, engine } = await open();
    const good = draw({ seed: 1 });
    await expect(draw({ prompt_ids })).rejects.toMatchObject({ status: 400, param: "prompt" });
    await good;
    expect(engine.calls).toEqual(["open base", "sample 1"]);
  });

  test("fail alone where their listener throws", async () => {
    const { draw, engine, text, expected } = await open();
    const fault = () => {
      throw new Error("the stream is closed");
    };
    const [failed, reply] = await Promise.allSettled([draw({ seed: 1, onTokens: fault }), draw({ seed: 2 })]);
    expect(failed).toMatchObject({ status: "rejected", reason: { message: "the stream is closed" } });
    expect(reply.status === "fulfilled" && text(reply.value.tokens)).toBe(expected(2));
    expect(engine.calls).toEqual(["open base", "sample 2"]);
  });

  test("are live only where someone listens: the others are drawn in longer chunks", async () => {
    const { draw, engine, serving } = await open();
    const asked: (boolean | undefined)[] = [];
    const openPolicy = engine.openPolicy.bind(engine);
    engine.openPolicy = async (dir) => {
      const policy = await openPolicy(dir);
      const sample = policy.sample.bind(policy);
      policy.sample = (requests, options) => {
        asked.push(...requests.map(({ isLive }) => isLive));
        return sample(requests, options);
      };
      return policy;
    };
    await serving.model()!.replace({ dir: "next", weightVersion: 8 });
    await draw({ seed: 1 });
    await draw({ seed: 1, onTokens: () => {} });
    expect(asked).toEqual([false, true]);
  });

  test("are refused when too many wait, and the others are answered", async () => {
    const { draw, engine, serving } = await open({ mostWaiting: 3, engine: { room: 1 } });
    const release = hold(engine);
    const running = draw({ seed: 1 });
    await turns();
    const waiting = [2, 3, 4].map((seed) => draw({ seed }));
    await expect(draw({ seed: 5 })).rejects.toMatchObject({ status: 429 });
    expect([serving.waiting, serving.pending]).toEqual([3, 4]);
    release();
    await Promise.all([running, ...waiting]);
    expect([serving.waiting, serving.pending, serving.active]).toEqual([0, 0, 0]);
    expect(serving.figures.failures.get("refused")).toBe(1);
  });

  test("of a caller with one are not behind those of a caller with hundreds", async () => {
    const { draw, engine } = await open({ engine: { room: 128 } });
    const release = hold(engine);
    const order: string[] = [];
    const greedy = [...Array(300).keys()].map((seed) =>
      draw({ seed, owner: "greedy" }).then(() => order.push("greedy")),
    );
    await turns();
    const modest = draw({ seed: 9, owner: "modest" }).then(() => order.push("modest"));
    release();
    await Promise.all([...greedy, modest]);
    // The batch that ran holds 128; the modest one joins it as soon as one of them has ended.
    expect(order.indexOf("modest")).toBeLessThan(150);
  });
});

function lengthOf(engine: TextEngine, seed: number): number {
  const params = { ...DEFAULTS, max_tokens: 200, stop_token_ids: [] };
  return engine.expected({ seed, prompt_ids: [1, 2], params }).text.length;
}

describe("a caller that goes away", () => {
  test("leaves the queue", async () => {
    const { draw, engine, serving } = await open({ engine: { room: 1 } });
    const release = hold(engine);
    const running = draw({ seed: 1 });
    await turns();
    const gone = new AbortController();
    const waiting = draw({ seed: 2, signal: gone.signal });
    gone.abort(new Error("went away"));
    await expect(waiting).rejects.toThrow("went away");
    expect(serving.waiting).toBe(0);
    release();
    await running;
    expect(engine.calls).toEqual(["open base", "sample 1"]);
    expect(serving.figures.failures.get("cancelled")).toBe(1);
  });

  test("ends its sequence with the next token; others go on", async () => {
    const { draw, text, expected } = await open({ engine: { mostTokens: 400 } });
    const gone = new AbortController();
    let heard = 0;
    const params = { max_tokens: 400 };
    const seed = 12;
    const leaving = draw({
      seed,
      params,
      signal: gone.signal,
      onTokens: (tokens) => {
        heard += tokens.length;
        gone.abort(new Error("went away"));
      },
    });
    const staying = draw({ seed: 3, params });
    await expect(leaving).rejects.toThrow("went away");
    expect(text((await staying).tokens)).toBe(expected(3, params));
    expect(heard).toBeLessThan(expected(seed, params).length);
  });
});

describe("weights that are replaced", () => {
  test("serve new requests, while those that run or wait finish on theirs", async () => {
    const { draw, engine, serving, text, expected } = await open({ engine: { room: 1 } });
    const release = hold(engine);
    const running = draw({ seed: 1 });
    await turns();
    const waiting = draw({ seed: 2 });
    const replaced = serving.model()!.replace({ dir: "step_9", weightVersion: 9 });
    release();
    await replaced;
    const after = await draw({ seed: 3 });
    const before = await Promise.all([running, waiting]);
    expect(before.map(({ tokens }) => text(tokens))).toEqual([expected(1), expected(2)]);
    expect(before.map(({ weight_version }) => weight_version)).toEqual([7, 7]);
    expect([text(after.tokens), after.weight_version]).toEqual([expected(3, { dir: "step_9" }), 9]);
    await serving.scheduler.idle();
    expect(engine.calls.filter((call) => /open|release/.test(call))).toEqual([
      "open base",
      "open step_9",
      "release base",
    ]);
    expect(engine.live).toBe(1);
  });

  test("that cannot be opened leave the model as it is", async () => {
    const { draw, engine, serving, text, expected } = await open();
    engine.damaged.add("step_9");
    await expect(serving.model()!.replace({ dir: "step_9", weightVersion: 9 })).rejects.toThrow(/damaged/);
    const reply = await draw({ seed: 3 });
    expect([text(reply.tokens), reply.weight_version]).toEqual([expected(3), 7]);
  });

  test("come in while a batch runs that others keep joining", async () => {
    const { draw, serving, engine } = await open({ engine: { mostTokens: 40 } });
    let isDone = false;
    let seed = 0;
    const caller = async () => {
      while (!isDone) await draw({ seed: seed++, params: { max_tokens: 40 } });
    };
    const callers = Promise.all([caller(), caller(), caller()]);
    await turns(20);
    await serving.model()!.replace({ dir: "step_9", weightVersion: 9 });
    isDone = true;
    await callers;
    expect(engine.calls).toContain("open step_9");
  });
});

describe("several models", () => {
  const models = { letters: { weightVersion: 0 }, poems: { dir: "poems", weightVersion: 3 } };

  test("are drawn each from its own weights", async () => {
    const { draw, text, expected } = await open({ models });
    const replies = await Promise.all(
      [...Array(12).keys()].map((seed) => draw({ seed, model: seed % 2 ? "poems" : "letters" })),
    );
    expect(replies.map(({ tokens }) => text(tokens))).toEqual(
      replies.map((_, seed) => expected(seed, { dir: seed % 2 ? "poems" : "base" })),
    );
    expect(replies.map(({ weight_version }) => weight_version)).toEqual(replies.map((_, i) => (i % 2 ? 3 : 0)));
  });

  test("a batch that callers keep joining lets another model have its turn", async () => {
    const { draw } = await open({ models, engine: { mostTokens: 40 } });
    let isDone = false;
    let [seed, most] = [0, 0];
    const caller = async () => {
      for (; !isDone && most < 5000; most++) await draw({ seed: seed++, params: { max_tokens: 40 } });
    };
    const callers = Promise.all([caller(), caller(), caller()]);
    await turns(20);
    await draw({ model: "poems", seed: 1, owner: "b" });
    isDone = true;
    await callers;
    expect(most).toBeLessThan(5000);
  });
});

describe("a device that is lost", () => {
  test("is opened again, and what ran is drawn again: the same tokens, each reported once", async () => {
    const { draw, engine, lines, text, expected } = await open({ engine: { mostTokens: 60 } });
    const params = { max_tokens: 60 };
    const heard = new Map<number, number[]>();
    const draws = [1, 2, 3].map((seed) =>
      draw({
        seed,
        params,
        onTokens: (tokens) => {
          heard.set(seed, [...(heard.get(seed) ?? []), ...tokens]);
          if (!engine.calls.includes("reopen")) engine.lose();
        },
      }),
    );
    const replies = await Promise.all(draws);
    expect(replies.map(({ tokens }) => text(tokens))).toEqual([1, 2, 3].map((seed) => expected(seed, params)));
    expect([...heard.values()]).toEqual(replies.map(({ tokens }) => tokens));
    expect(engine.calls.filter((call) => call === "reopen")).toEqual(["reopen"]);
    expect(engine.live).toBe(1);
    expect(lines).toHaveLength(2);
  });

  test("a second loss of the same request is its error", async () => {
    const { draw, engine, expected } = await open({ engine: { mostTokens: 60 } });
    const seed = [...Array(20).keys()].find((it) => expected(it, { max_tokens: 60 }).length > 20)!;
    const lost = draw({ seed, params: { max_tokens: 60 }, onTokens: () => engine.lose() });
    await expect(lost).rejects.toThrow(/GPU device was lost/);
    expect((await draw({ seed: 3 })).tokens.length).toBeGreaterThan(0);
  });
});

describe("a server that stops", () => {
  test("finishes what runs, and refuses what comes", async () => {
    const { draw, serving, engine } = await open();
    const release = hold(engine);
    const running = draw({ seed: 1 });
    await turns();
    const stopped = serving.stop({ graceMs: 5000 });
    await expect(draw({ seed: 2 })).rejects.toMatchObject({ status: 503 });
    release();
    expect((await running).tokens.length).toBeGreaterThan(0);
    expect(await stopped).toBe(0);
  });

  test("aborts after the limit what runs and what waits", async () => {
    const { draw, serving, engine } = await open({ engine: { room: 1 } });
    const release = hold(engine);
    const draws = [draw({ seed: 1 })];
    await turns();
    draws.push(draw({ seed: 2 }));
    const settled = Promise.allSettled(draws);
    const stopped = serving.stop({ graceMs: 30 });
    await turns(60);
    release();
    expect(await stopped).toBe(2);
    for (const { status, ...rest } of await settled) {
      expect(status).toBe("rejected");
      expect((rest as { reason: unknown }).reason).toMatchObject({ status: 503 });
    }
  });
});
