/** The server's smaller parts by figures: counts, paths, sessions, sequences, prompts, results, packed rows. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { ConfigError, DeviceLostError, UnsupportedError } from "../../../src/leaves/errors.ts";
import { Activity, Counter } from "../../../src/serve/tinker/activity.ts";
import { checkMetadata, METADATA_LIMITS } from "../../../src/serve/tinker/checkpoint/record.ts";
import {
  checkName,
  foldersOfRun,
  formatPath,
  isName,
  parsePath,
  runOfFolders,
} from "../../../src/serve/tinker/checkpoint_path.ts";
import type { RequestDatum, TensorMessage } from "../../../src/serve/tinker/protocol/forward_backward.ts";
import { type Future, Futures } from "../../../src/serve/tinker/protocol/futures.ts";
import { MOST_TARGETS, packLossRows, widthsOf } from "../../../src/serve/tinker/protocol/loss_rows.ts";
import { Refusal, type RequestOutcome, requestFailure } from "../../../src/serve/tinker/protocol/outcome.ts";
import {
  MOST_SAMPLES,
  type PromptRequest,
  requestsOf,
  STOP_LIMITS,
} from "../../../src/serve/tinker/protocol/prompt_request.ts";
import { pageOf, readAddress } from "../../../src/serve/tinker/protocol/requests.ts";
import { askedBefore, remember, TinkerSessions } from "../../../src/serve/tinker/sessions.ts";
import { RequestSequence } from "../../../src/serve/tinker/train/request_sequence.ts";
import { PROMPT_REQUEST, ToyEngine } from "../../fixtures/toy_engine.ts";

const text = (value: string) => new TextEncoder().encode(value);

describe("a counter", () => {
  beforeEach(() => void vi.useFakeTimers({ now: 1_000_000_000 }));
  afterEach(() => void vi.useRealTimers());

  test("has the rate since it began, and later of the last 30 seconds", () => {
    const counter = new Counter();
    counter.add(60);
    expect([counter.total, counter.rate]).toEqual([60, 60]);
    vi.advanceTimersByTime(10_000);
    expect(counter.rate).toBe(6);
    counter.add(30);
    expect(counter.rate).toBe(9);
    vi.advanceTimersByTime(19_000);
    expect(counter.rate).toBeCloseTo(90 / 29, 12);
    vi.advanceTimersByTime(1_000);
    expect(counter.rate).toBe(1);
    vi.advanceTimersByTime(9_000);
    expect(counter.rate).toBe(1);
    vi.advanceTimersByTime(1_000);
    expect(counter.rate).toBe(0);
    vi.advanceTimersByTime(3_600_000);
    counter.add(30);
    expect([counter.total, counter.rate]).toEqual([120, 1]);
  });

  test("of the server's work counts batches, answers and tokens apart", () => {
    const activity = new Activity();
    activity.sampledBatch({ batches: 1, sequences: 2, sampled: 5, scored: 7 });
    activity.sampledBatch({ batches: 1, sequences: 1, sampled: 4, scored: 0 });
    activity.trained(11);
    for (const status of [200, 200, 404]) activity.answered("asample", status);
    const { batches, sequences, sampledTokens, scoredTokens, trainedTokens, answers } = activity;
    const totals = [batches, sequences, sampledTokens, scoredTokens, trainedTokens].map(({ total }) => total);
    expect(totals).toEqual([2, 3, 9, 7, 11]);
    expect([...answers]).toEqual([
      ["asample 200", 2],
      ["asample 404", 1],
    ]);
  });
});

describe("a checkpoint's path", () => {
  const run = `${"a".repeat(64)}:train:999999999`;

  test.each([
    { run: "s:train:0", kind: "weights" as const, name: "a" },
    { run, kind: "sampler_weights" as const, name: `9${"x".repeat(127)}` },
    { run: "0-a:train:12", kind: "weights" as const, name: "A.b_c-d" },
  ])("%o is read as it is written", (path) => {
    expect(parsePath(formatPath(path))).toEqual(path);
  });

  test.each([
    "s:train:0/weights/a",
    "tinker:/s:train:0/weights/a",
    "tinker://s:train:0/other/a",
    "tinker://s:train:0/weights",
    "tinker://s:train:0/weights/",
    "tinker://s:train:0/weights/a/b",
    "tinker://s:train:0/weights/.a",
    `tinker://s:train:0/weights/${"x".repeat(129)}`,
    `tinker://${"a".repeat(65)}:train:0/weights/a`,
    "tinker://s:train:1234567890/weights/a",
    "tinker://s:train:/weights/a",
    "tinker://-s:train:0/weights/a",
    "tinker://s:sample:0/weights/a",
    "tinker://xs:train:0 /weights/a",
  ])("%s is none", (path) => {
    expect(() => parsePath(path)).toThrow(
      `Cannot find the checkpoint: its path must be tinker://RUN/KIND/NAME with the kind weights, sampler_weights, external_weights (${path.slice(0, 200)}).`,
    );
  });

  test("has a plain file name", () => {
    for (const name of ["a", "9", "A.b_c-d", "x".repeat(128)])
      expect([isName(name), checkName(name)]).toEqual([true, name]);
    for (const name of ["", ".a", "-a", "_a", "a/b", "a b", "é", "x".repeat(129)]) {
      expect(isName(name)).toBe(false);
      expect(() => checkName(name)).toThrow(`Cannot save under the name ${JSON.stringify(name)}: use 1 to 128 letters`);
    }
  });

  test("lies in the folders of its run, and back", () => {
    expect(foldersOfRun("s-1:train:7")).toEqual(["s-1", "train-7"]);
    expect(runOfFolders("s-1", "train-7")).toBe("s-1:train:7");
    expect(runOfFolders("s-1", "train-")).toBeUndefined();
    expect(runOfFolders("s-1", "xtrain-7")).toBeUndefined();
    expect(runOfFolders(".s", "train-7")).toBeUndefined();
    expect(() => foldersOfRun("../x")).toThrow("Cannot find the training run ../x: no run has that id.");
  });
});

describe("sessions", () => {
  beforeEach(() => void vi.useFakeTimers({ now: 1_000_000 }));
  afterEach(() => void vi.useRealTimers());

  const open = (most: number) => {
    const ended: [string, string][] = [];
    const sessions = new TinkerSessions({
      most,
      idleMs: 100,
      end: (id, why) => {
        ended.push([id, why]);
        sessions.remove(id);
      },
    });
    return { sessions, ended };
  };

  test("are as many as there may be, and one that has been silent for longer than it may makes room", () => {
    const { sessions, ended } = open(2);
    const [a] = [sessions.create({}), sessions.create({})];
    vi.advanceTimersByTime(100);
    expect(() => sessions.create({})).toThrow(
      "Cannot open a session: 2 are in use, which is the limit. Try again later.",
    );
    sessions.find(a.id);
    vi.advanceTimersByTime(1);
    const c = sessions.create({});
    expect(ended).toEqual([[expect.any(String), "it was silent and another session needed its place"]]);
    expect([...sessions.keys()]).toEqual([a.id, c.id]);
    expect(sessions.size).toBe(2);
  });

  test("without training end before those with it, and the longest silent first", () => {
    const { sessions, ended } = open(4);
    const made = Array.from({ length: 4 }, () => {
      vi.advanceTimersByTime(10);
      return sessions.create({});
    });
    made[0]!.runs.add("one");
    made[1]!.runs.add("one").add("two");
    vi.advanceTimersByTime(1000);
    for (let i = 0; i < 4; i++) {
      sessions.create({});
      vi.advanceTimersByTime(1);
    }
    expect(ended.map(([id]) => made.findIndex((it) => it.id === id))).toEqual([2, 3, 0, 1]);
  });

  test("know their earlier requests by key, the last 2048", () => {
    const { sessions } = open(1);
    const session = sessions.create({});
    for (let i = 0; i < 2049; i++) remember(session, `model ${i}`, { print: String(i) });
    expect(session.asked.size).toBe(2048);
    expect(askedBefore(session, { key: "model 0", print: "other" })).toBeUndefined();
    expect(askedBefore(session, { key: "model 1", print: "1" })).toEqual({ print: "1" });
    expect(() => askedBefore(session, { key: "model 1", print: "2" })).toThrow(
      "Cannot accept the request: the session requested model 1 before, with other settings. Use another number.",
    );
    expect(() => sessions.find("x".repeat(200))).toThrow(`Cannot find the session ${"x".repeat(100)}: it has ended`);
  });
});

describe("metadata", () => {
  const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)]);
  test("may have 32 levels and 65,536 characters", () => {
    expect(() => checkMetadata(deep(METADATA_LIMITS.levels))).not.toThrow();
    expect(() => checkMetadata(deep(33))).toThrow("Cannot accept user_metadata: it is nested deeper than 32 levels.");
    expect(() => checkMetadata(undefined)).not.toThrow();
    expect(() => checkMetadata("x".repeat(65_534))).not.toThrow();
    expect(() => checkMetadata("x".repeat(65_535))).toThrow(
      "Cannot accept user_metadata: it may have 65536 characters as JSON (65537).",
    );
  });
});

describe("a sequence of requests", () => {
  const open = (most = 3) => {
    const ready: string[] = [];
    const sequence = new RequestSequence<{ future: Future; name: string }>({
      gapMs: 1e6,
      most,
      ready: ({ name }) => ready.push(name),
      givenUp: () => {},
    });
    const submit = (number: bigint, print = String(number)) =>
      sequence.submit(number, {
        print,
        make: () => ({ name: print, future: { id: print, session: "s", state: () => ({ queue_state: "active" }) } }),
      });
    return { ready, sequence, submit };
  };

  test("counts from 1; 0 and below run at once and count for nothing", () => {
    const { ready, sequence, submit } = open();
    for (const number of [0n, -5n, 0n]) submit(number);
    expect([ready, sequence.missing, sequence.isUsed(1n)]).toEqual([["0", "-5", "0"], 1n, false]);
    submit(1n);
    expect([ready.at(-1), sequence.missing, sequence.isUsed(1n), sequence.isUsed(2n)]).toEqual(["1", 2n, true, false]);
  });

  test("parks no more than it may, and the missing one releases all in order", () => {
    const { ready, sequence, submit } = open(2);
    submit(3n);
    submit(2n);
    expect([sequence.parkedCount, sequence.isUsed(3n), ready]).toEqual([2, true, []]);
    expect(() => submit(4n)).toThrow(
      "Cannot accept the request: 2 requests already wait for seq_id 1. Send that one first.",
    );
    expect(sequence.isUsed(4n)).toBe(false);
    expect(submit(3n).id).toBe("3");
    expect(sequence.clear().map(({ name }) => name)).toEqual(["3", "2"]);
    expect(sequence.parkedCount).toBe(0);
  });

  test("recognises the last 4096 requests, and those before are past", () => {
    const { submit } = open();
    for (let i = 1n; i <= 4097n; i++) submit(i);
    expect(submit(2n).id).toBe("2");
    expect(() => submit(2n, "other")).toThrow(/2/);
    expect(() => submit(1n)).toThrow("Cannot accept the request: its seq_id is in the past (1). The next one is 4098.");
  });
});

describe("a request to sample", () => {
  const engine = new ToyEngine();
  const ask = (more: Partial<PromptRequest> = {}) => requestsOf({ ...PROMPT_REQUEST, ...more }, engine);

  test("becomes requests to the model, within the room that the context leaves", () => {
    const [request, ...others] = ask({ seed: 5, topP: 0.5, topK: 3, temperature: 0.7 });
    expect(others).toEqual([]);
    expect(request).toMatchObject({
      prompt_ids: [1, 2],
      params: { max_tokens: 62, temperature: 0.7, top_p: 0.5, top_k: 3, stop_token_ids: [99] },
      ends: undefined,
    });
    const most = (maxTokens: number) => ask({ maxTokens })[0]!.params.max_tokens;
    expect([most(1), most(62), most(63)]).toEqual([1, 62, 62]);
    expect(ask({ stopTokens: [] })[0]!.params.stop_token_ids).toEqual([]);
    expect(ask({ count: MOST_SAMPLES })).toHaveLength(1024);
  });

  test.each<[Partial<PromptRequest>, string | undefined]>([
    [{ prompt: [] }, "the prompt must have at least one token"],
    [{ prompt: [0, 99] }, undefined],
    [{ prompt: [100] }, "token ids must lie in [0, 100) (100)"],
    [{ prompt: [-1] }, "token ids must lie in [0, 100) (-1)"],
    [{ prompt: [0.5] }, "token ids must lie in [0, 100) (0.5)"],
    [{ prompt: new Array(63).fill(1) }, undefined],
    [{ prompt: new Array(64).fill(1) }, "the prompt must leave room in the context of 64 tokens (64); shorten it"],
    [{ count: 1025 }, "num_samples must lie in [1, 1024] (1025)"],
    [{ count: 0 }, "num_samples must lie in [1, 1024] (0)"],
    [{ count: 1.5 }, "num_samples must lie in [1, 1024] (1.5)"],
    [{ maxTokens: 0 }, "max_tokens must be a whole number above 0 (0)"],
    [{ maxTokens: 1.5 }, "max_tokens must be a whole number above 0 (1.5)"],
    [{ temperature: 0 }, undefined],
    [{ temperature: 1e-4 }, undefined],
    [{ temperature: 0.99e-4 }, "temperature must be 0 or lie in [0.0001, 10000] (0.000099)"],
    [{ temperature: 1e4 }, undefined],
    [{ temperature: 10_001 }, "temperature must be 0 or lie in [0.0001, 10000] (10001)"],
    [{ temperature: Number.NaN }, "temperature must be 0 or lie in [0.0001, 10000] (NaN)"],
    [{ stopTexts: new Array(256).fill("a") }, undefined],
    [{ stopTexts: new Array(257).fill("a") }, "stop must have at most 256 texts or tokens (257)"],
    [{ stopTokens: new Array(256).fill(1) }, undefined],
    [{ stopTokens: new Array(257).fill(1) }, "stop must have at most 256 texts or tokens (257)"],
    [{ stopTexts: ["x".repeat(STOP_LIMITS.characters)] }, undefined],
    [{ stopTexts: ["x", "x".repeat(STOP_LIMITS.characters)] }, "stop must have at most 16384 characters"],
    [{ stopTexts: ["a", ""] }, "stop must not have an empty text, which would end every sample at its first token"],
    [{ topP: 0 }, "top_p must lie in (0, 1] (0)"],
    [{ topP: 1.1 }, "top_p must lie in (0, 1] (1.1)"],
    [{ topK: 0 }, undefined],
    [{ topK: -2 }, "top_k must be -1 or a count (-2)"],
    [{ topkPromptLogprobs: 100 }, undefined],
    [{ topkPromptLogprobs: 101 }, "topk_prompt_logprobs must lie in [0, 100] (101)"],
    [{ topkPromptLogprobs: -1 }, "topk_prompt_logprobs must lie in [0, 100] (-1)"],
    [{ topkSampleLogprobs: 100, count: 169 }, undefined],
    [
      { topkSampleLogprobs: 100, count: 170 },
      "topk_sample_logprobs of all samples may report 1048576 tokens, and num_samples and max_tokens make them 1054000; lower one of the three",
    ],
    [{ topkSampleLogprobs: 100, count: 1024, maxTokens: 10 }, undefined],
    [{ topkSampleLogprobs: 101 }, "topk_sample_logprobs must lie in [0, 100] (101)"],
    [{ promptLogprobs: true, promptLogprobsLastN: 1 }, undefined],
    [
      { promptLogprobs: true, promptLogprobsLastN: 2 },
      "prompt_logprobs_last_n must lie in [1, 1] and needs prompt_logprobs (2)",
    ],
    [
      { promptLogprobs: true, promptLogprobsLastN: 0 },
      "prompt_logprobs_last_n must lie in [1, 1] and needs prompt_logprobs (0)",
    ],
    [{ promptLogprobsLastN: 1 }, "prompt_logprobs_last_n must lie in [1, 1] and needs prompt_logprobs (1)"],
  ])("(%#) is accepted, or refused with the limit and the value", (more, rule) => {
    if (rule === undefined) expect(() => ask(more)).not.toThrow();
    else expect(() => ask(more)).toThrow(new ConfigError(`Cannot sample: ${rule}.`));
  });

  test("ends where the last tokens hold a stop text", () => {
    const { ends } = ask({ stopTexts: ["<7>", "<12>"] })[0]!;
    expect([[7], [1, 2, 3, 4, 5, 6, 7], [12], [1], [1, 2]].map((tokens) => ends!(tokens))).toEqual([
      true,
      true,
      true,
      false,
      false,
    ]);
    // A text of 4 bytes is looked for in the last 8 tokens.
    const behind = (count: number) => ends!([7, ...new Array(count).fill(1)]);
    expect([behind(7), behind(8)]).toEqual([true, false]);
    const mute = new ToyEngine();
    Object.defineProperty(mute, "decode", { value: undefined });
    expect(() => requestsOf({ ...PROMPT_REQUEST, stopTexts: ["a"] }, mute)).toThrow(
      "Cannot stop at a text: the model has no tokenizer. Give stop as token ids.",
    );
  });
});

describe("results", () => {
  const open = (budgetBytes = 1e6) => {
    const futures = new Futures({ budgetBytes });
    const dropped: string[] = [];
    const make = (name: string, session = "s") =>
      futures.open({ session, state: () => ({ queue_state: "active" }), dropped: () => dropped.push(name) });
    return { futures, dropped, make };
  };
  const proto = (bytes: number): RequestOutcome => ({ kind: "proto", bytes: new Uint8Array(bytes) });

  test.each<[RequestOutcome, number]>([
    [proto(10), 10],
    [{ kind: "failure", error: "twelve chars", category: "user" }, 12],
    [{ kind: "json", body: { a: 1 } }, 7],
  ])("count with their bookkeeping of 2 KiB (%#)", (outcome, bytes) => {
    const { futures, make } = open();
    const future = make("a");
    expect([futures.pending, futures.bytes, futures.isSettled(future)]).toEqual([1, 0, false]);
    futures.settle(future, outcome);
    futures.settle(future, proto(999));
    expect([futures.pending, futures.bytes, futures.isSettled(future)]).toEqual([0, 2048 + bytes, true]);
    futures.dropSession("other");
    expect(futures.bytes).toBe(2048 + bytes);
    futures.dropSession("s");
    expect([futures.pending, futures.bytes]).toEqual([0, 0]);
  });

  test("of an ended session no longer wait, and are not pending", async () => {
    const { futures, dropped, make } = open();
    const future = make("a");
    const waiting = futures.wait(future.id, { holdMs: 60_000 });
    futures.dropSession("s");
    expect(await waiting).toBeUndefined();
    expect([futures.pending, dropped]).toEqual([0, ["a"]]);
    expect(() => futures.find(future.id)).toThrow(`Cannot retrieve ${future.id}: there is no such request.`);
  });

  test("fit the budget exactly; beyond it the oldest that was read goes first, then the oldest", async () => {
    const { futures, dropped, make } = open(3 * (2048 + 10));
    const [a, b, c] = ["a", "b", "c"].map((name) => make(name));
    for (const future of [a, b, c]) futures.settle(future!, proto(10));
    expect(dropped).toEqual([]);
    await futures.wait(b!.id, { holdMs: 0 });
    futures.settle(make("d"), proto(10));
    expect(dropped).toEqual(["b"]);
    make("pending");
    futures.settle(make("e"), proto(10));
    expect(dropped).toEqual(["b", "a"]);
  });

  test("wait as long as they may, until the client leaves, or until the server stops", async () => {
    const { futures, make } = open();
    const { id } = make("a");
    expect(await futures.wait(id, { holdMs: 1 })).toBeUndefined();
    expect(await futures.wait(id, { holdMs: 0 })).toBeUndefined();
    expect(await futures.wait(id, { holdMs: 60_000, signal: AbortSignal.abort() })).toBeUndefined();
    const leaving = new AbortController();
    const waits = [futures.wait(id, { holdMs: 60_000, signal: leaving.signal }), futures.wait(id, { holdMs: 60_000 })];
    leaving.abort();
    expect(await waits[0]).toBeUndefined();
    futures.wakeAll();
    expect(await waits[1]).toBeUndefined();
  });

  test("tell those that ask when they are there, or will never be", () => {
    const { futures, make } = open();
    const told: string[] = [];
    const future = make("a");
    futures.whenSettled(future, () => told.push("later"));
    expect(told).toEqual([]);
    futures.settle(future, proto(1));
    futures.whenSettled(future, () => told.push("at once"));
    futures.dropSession("s");
    futures.whenSettled(future, () => told.push("gone"));
    expect(told).toEqual(["later", "at once", "gone"]);
  });

  test.each<[unknown, string, string]>([
    [new ConfigError("wrong"), "wrong", "user"],
    [new ConfigError("full", {}, { cause: Object.assign(new Error("x"), { code: "ENOSPC" }) }), "full", "server"],
    [new UnsupportedError("not here", { part: "x", capability: "y" }), "not here", "user"],
    [new Refusal(499, "theirs"), "theirs", "user"],
    [new Refusal(500, "ours"), "ours", "server"],
    [new Error("broken"), "broken", "server"],
    ["a text", "a text", "server"],
    [
      new DeviceLostError("reset"),
      expect.stringContaining("the server's GPU device was lost (reset). It is opened again"),
      "server",
    ],
  ])("of a failure say whose fault it was (%#)", (error, told, category) => {
    expect(requestFailure(error)).toEqual({ kind: "failure", error: told, category });
  });
});

describe("the data of a training request", () => {
  const targets = (...ids: number[]): TensorMessage => ({
    values: BigInt64Array.from(ids, BigInt),
    shape: [],
  });
  const floats = (...values: number[]): TensorMessage => ({
    values: Float32Array.from(values),
    shape: [],
  });
  const csr = (crow: number[], col: number[]) => ({
    crow: BigInt64Array.from(crow, BigInt),
    col: BigInt64Array.from(col, BigInt),
  });
  const datum = (chunks: number[][], inputs: Record<string, TensorMessage>): RequestDatum => ({
    chunks: chunks.map((tokens) => ({ kind: "text", tokens: Int32Array.from(tokens) })),
    inputs: new Map(Object.entries(inputs)),
  });

  test("lie packed, end to end", () => {
    const {
      tokens,
      offsets,
      targets: wanted,
      inputs,
    } = packLossRows([
      datum([[1, 2], [3]], { target_tokens: targets(2, 3, 4), weights: floats(1, 2, 3) }),
      datum([[9]], { target_tokens: targets(2 ** 40), weights: floats(4) }),
    ]);
    expect([[...tokens], [...offsets], [...wanted]]).toEqual([
      [1, 2, 3, 9],
      [0, 3, 4],
      [2, 3, 4, 2 ** 32 - 1],
    ]);
    expect(inputs).toEqual({ weights: Float32Array.of(1, 2, 3, 4) });
  });

  const fine = datum([[1]], { target_tokens: targets(2) });
  test.each<[string, RequestDatum, string]>([
    [
      "an image",
      { ...fine, chunks: [{ kind: "image", tokens: new Int32Array() }] },
      "it has a chunk of type image, and this server's models read only text. Send chunks of type encoded_text.",
    ],
    ["no tokens", datum([], { target_tokens: targets() }), "its model_input has no tokens."],
    ["no targets", datum([[1]], { weights: floats(1) }), "its loss_fn_inputs must have target_tokens."],
    ["targets that are no ids", datum([[1]], { target_tokens: targets(-1) }), "target_tokens must be token ids (-1)."],
    [
      "weights as integers",
      datum([[1]], { target_tokens: targets(2), weights: targets(1) }),
      "weights must be float32.",
    ],
    ["targets as floats", datum([[1]], { target_tokens: floats(2) }), "target_tokens must be int64."],
    [
      "a sparse vector",
      datum([[1]], { target_tokens: { ...targets(2), sparse: csr([0, 1], [0]), shape: [1] } }),
      "target_tokens must have one element per token, [1] (sparse [1] with 1 elements).",
    ],
    [
      "other weights than targets",
      datum([[1]], { target_tokens: { ...targets(2, 3), shape: [1, 2] }, weights: floats(1) }),
      "weights must have one element per token and target, [1,2] ([] with 1 elements).",
    ],
    [
      "no target per position",
      datum([[1]], { target_tokens: { ...targets(), shape: [1, 0] } }),
      "its target_tokens must name a token per position (0).",
    ],
    [
      "a sparse matrix without all row starts",
      datum([[1, 2]], { target_tokens: { ...targets(7), sparse: csr([0, 1], [0]), shape: [2, 2] } }),
      "the sparse target_tokens must have 3 row starts from 0 to 1.",
    ],
    [
      "a sparse matrix whose row starts descend",
      datum([[1, 2, 3]], { target_tokens: { ...targets(7), sparse: csr([0, 1, 0, 1], [0]), shape: [3, 2] } }),
      "the sparse target_tokens must have row starts that ascend.",
    ],
    [
      "a sparse matrix with a column outside it",
      datum([[1]], { target_tokens: { ...targets(7), sparse: csr([0, 1], [2]), shape: [1, 2] } }),
      "the sparse target_tokens must have columns in [0, 2) (2).",
    ],
    [
      "a sparse matrix without a column for a value",
      datum([[1]], { target_tokens: { ...targets(7), sparse: csr([0, 1], []), shape: [1, 2] } }),
      "the sparse target_tokens must have a column per value (0 of 1).",
    ],
    ["a shape that lies", datum([[1]], { target_tokens: { ...targets(2), shape: [2] } }), "([2] with 1 elements)"],
    ["too many targets", datum([[1]], { target_tokens: targets(2, 3) }), "([] with 2 elements)"],
  ])("with %s are refused by number", (_, wrong, why) => {
    expect(() => packLossRows([wrong])).toThrow("Cannot train on datum 0: ");
    expect(() => packLossRows([wrong])).toThrow(why);
  });

  test("have the same inputs in every datum; weights that a datum lacks are 1", () => {
    const more = datum([[1]], { target_tokens: targets(2), logprobs: floats(1) });
    expect(() => packLossRows([more, fine])).toThrow(
      "Cannot train on datum 1: it has no logprobs, which other data of the request have.",
    );
    const weighted = datum([[1]], { target_tokens: targets(2), weights: floats(0.25) });
    expect(packLossRows([fine, weighted, fine]).inputs).toEqual({ weights: Float32Array.of(1, 0.25, 1) });
  });

  test("may have several targets per position, as many as each datum's own; sparse ones are 0 elsewhere", () => {
    const wide = datum([[1, 2]], {
      target_tokens: { ...targets(5, 6, 7), sparse: csr([0, 2, 3], [0, 2, 1]), shape: [2, 3] },
      weights: { ...floats(0.5, 0.25), sparse: csr([0, 0, 2], [0, 1]), shape: [2, 3] },
    });
    const one = datum([[3]], { target_tokens: { ...targets(9), shape: [1, 1] } });
    const rows = packLossRows([wide, one]);
    expect(rows).toEqual({
      tokens: Uint32Array.of(1, 2, 3),
      offsets: Uint32Array.of(0, 2, 3),
      targets: Uint32Array.of(5, 0, 6, 0, 7, 0, 9),
      targetOffsets: Uint32Array.of(0, 6, 7),
      inputs: { weights: Float32Array.of(0, 0, 0, 0.5, 0.25, 0, 1) },
    });
    expect(widthsOf(rows)).toEqual([3, 1]);
    expect(widthsOf(packLossRows([fine]))).toBeUndefined();
    expect(() => packLossRows([wide, fine])).toThrow(
      "Cannot train on datum 1: its target_tokens must have as many dimensions as those of the request's other data.",
    );
  });

  test("may have at most four million targets: a sparse tensor names more than it has bytes for", () => {
    const sparse = (width: number) =>
      datum([[1]], { target_tokens: { ...targets(), sparse: csr([0, 0], []), shape: [1, width] } });
    expect(() => packLossRows([sparse(MOST_TARGETS), sparse(1)])).toThrow(
      `Cannot train on the request: it has more than 4194304 targets (4194305). Split the batch into several requests.`,
    );
  });
});

describe("a request's own words", () => {
  test.each<[string, { modelId: string; number: bigint } | undefined]>([
    ['{"model_id": "m", "seq_id": 7}', { modelId: "m", number: 7n }],
    ['{"seq_id": 12345678901234567890, "model_id": "m"}', { modelId: "m", number: 12345678901234567890n }],
    ['{"model_id": "m", "seq_id": 7, "adam', { modelId: "m", number: 7n }],
    ['{"model_id"  :  "m", "seq_id" : "7", ', { modelId: "m", number: 7n }],
    ['{"model_id": 5, "seq_id": 7}', undefined],
    ['{"model_id": "m", ', undefined],
    ['{"seq_id": 7, ', undefined],
    ['{"model_id": "m", "seq_id": -7', undefined],
  ])("%s names a model and a number, or not", (body, address) => {
    expect(readAddress(text(body))).toEqual(address);
  });

  test.each<[Record<string, string>, { offset: number; limit: number } | string]>([
    [{}, { offset: 0, limit: 100 }],
    [
      { offset: "3", limit: "0" },
      { offset: 3, limit: 0 },
    ],
    [{ offset: "-1" }, "offset must be a whole number (-1)"],
    [{ limit: "x" }, "limit must be a whole number (x)"],
    [{ limit: "1.5" }, "limit must be a whole number (1.5)"],
  ])("%o selects a page, or is refused", (query, page) => {
    if (typeof page === "string") expect(() => pageOf(query)).toThrow(`Cannot read the query: ${page}.`);
    else expect(pageOf(query)).toEqual(page);
  });
});
