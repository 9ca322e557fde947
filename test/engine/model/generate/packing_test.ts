/** Where tokens lie in the pages of the cache, and what the sequences of a prompt share: figures. */
import { describe, expect, test } from "vitest";
import type { SampleRequest } from "../../../../src/engine/contract/backend.ts";
import {
  concatRows,
  keepHidden,
  packPieces,
  pageTable,
  promptEndCopies,
} from "../../../../src/engine/model/generate/packing.ts";
import { PagePool, pageNeed, usablePages } from "../../../../src/engine/model/generate/pages.ts";
import {
  addToken,
  checkRequest,
  noteAbort,
  type Prompt,
  type Sequence,
  sampled,
  startSequence,
  tokenLimit,
} from "../../../../src/engine/model/generate/sequence.ts";
import type { Transformer } from "../../../../src/engine/model/transformer.ts";
import { request } from "../../../fixtures/sample_requests.ts";

function prompt(length: number, pages: number[]): Prompt {
  return {
    key: `${length}`,
    policy: undefined,
    ids: Array.from({ length }, (_, i) => 100 + i),
    pages,
    members: new Set(),
    computed: 0,
  };
}

function sequence(of: Prompt, own: number[], changes: Partial<SampleRequest> = {}): Sequence {
  const waiting = { index: of.members.size, request: { ...request(1, 9, 0), ...changes }, limit: 3 };
  const it = startSequence(waiting, { prompt: of, ownPages: own });
  of.members.add(it);
  return it;
}

test.each([
  // The last token drawn is never read, so it needs no place.
  [1, 1, 0, 1],
  [16, 1, 1, 0],
  [16, 2, 1, 1],
  [17, 16, 1, 1],
  [17, 17, 1, 2],
  [15, 2, 0, 1],
  [15, 3, 0, 2],
  [32, 33, 2, 2],
  [32, 34, 2, 3],
])("a prompt of %i tokens with %i drawn ones takes %i shared pages and %i of its own", (length, limit, shared, own) => {
  expect(pageNeed("key", { prompt: length, limit })).toEqual({ key: "key", shared, own });
});

test("usable pages are those of the largest prompts and of the largest sequences that run together", () => {
  const need = (key: string, shared: number, own: number) => ({ key, shared, own });
  const needs = [need("a", 3, 1), need("a", 3, 5), need("b", 1, 2), need("c", 2, 4)];
  expect([1, 2, 3, 4, 9].map((together) => usablePages(needs, together))).toEqual([
    5 + 3,
    9 + 5,
    11 + 6,
    12 + 6,
    12 + 6,
  ]);
});

test("a pool gives the lowest pages first, and those given back before them", () => {
  const pool = new PagePool(4);
  expect([pool.take(2), pool.free]).toEqual([[0, 1], 2]);
  pool.give([0]);
  expect([pool.take(2), pool.free, pool.take(0)]).toEqual([[0, 2], 1, []]);
});

test("a line of the page table ends with the last page of its sequence, as often as the chunk reaches beyond it", () => {
  const one = prompt(20, [7]);
  const running = [sequence(one, [3, 9]), sequence(one, [4])];
  expect(running[0]!.pages).toEqual([7, 3, 9]);
  expect(pageTable(running, 64)).toEqual(Uint32Array.of(7, 3, 9, 9, 7, 4, 4, 4));
  expect(pageTable(running, 17)).toEqual(Uint32Array.of(7, 3, 7, 4));
  expect(pageTable(running, 16)).toEqual(Uint32Array.of(7, 7));
});

test("prompts are packed end to end, each token at its place in the pages of its first sequence", () => {
  const [long, short] = [prompt(18, [5]), prompt(2, [])];
  sequence(long, [2]);
  sequence(long, [3]);
  sequence(short, [8]);
  const all = [...Array.from({ length: 16 }, (_, i) => 80 + i), 32, 33, 128, 129];
  const whole = packPieces([
    { prompt: long, from: 0, to: 18 },
    { prompt: short, from: 0, to: 2 },
  ]);
  expect([...whole.tokens]).toEqual([...long.ids, ...short.ids]);
  expect(whole).toMatchObject({ first: 0, offsets: Uint32Array.of(0, 18, 20), places: Uint32Array.from(all) });
  // The rest of the first prompt, after the keys of its first sixteen tokens, and a part of the second.
  const rest = packPieces([
    { prompt: long, from: 16, to: 18 },
    { prompt: short, from: 0, to: 1 },
  ]);
  expect([...rest.tokens]).toEqual([...long.ids.slice(16), short.ids[0]]);
  expect(rest).toMatchObject({
    first: 16,
    offsets: Uint32Array.of(0, 2, 3),
    places: Uint32Array.from(all.slice(0, 19)),
  });
  expect([...rest.starts]).toEqual([...Array(18).fill(0), 18]);
});

test("the page with a prompt's end is copied to its later sequences, where it is not full", () => {
  const [ragged, whole] = [prompt(18, [5]), prompt(16, [6])];
  const sequences = [
    sequence(ragged, [2]),
    sequence(ragged, [3, 4]),
    sequence(ragged, [9]),
    sequence(whole, [0]),
    sequence(whole, [1]),
  ];
  expect(promptEndCopies(sequences)).toEqual([
    { from: 2, to: 3 },
    { from: 2, to: 9 },
  ]);
  expect(promptEndCopies(sequences.slice(0, 1))).toEqual([]);
});

test("each prompt keeps its row of the hidden states, and rows are joined in order", () => {
  const prompts = [prompt(1, []), prompt(2, []), prompt(3, [])];
  keepHidden(prompts, Float32Array.of(1, 2, 3, 4, 5, 6));
  expect(prompts.map(({ hidden }) => [...hidden!])).toEqual([
    [1, 2],
    [3, 4],
    [5, 6],
  ]);
  expect(concatRows([prompts[2]!.hidden!, prompts[0]!.hidden!])).toEqual(Float32Array.of(5, 6, 1, 2));
});

describe("a sequence", () => {
  const start = (changes: Partial<SampleRequest> = {}) => sequence(prompt(1, []), [0], changes);

  test("stops with its last token, by length", () => {
    const it = start();
    for (const [i, token] of [5, 6, 7].entries()) {
      expect(it.stopped).toBe(false);
      addToken(it, token, -i);
    }
    expect(it).toMatchObject({ stopped: true, ended: false });
    expect(sampled(it, 4)).toEqual({
      tokens: [5, 6, 7],
      logprobs: [-0, -1, -2],
      finish_reason: "length",
      weight_version: 4,
    });
  });

  test.each<[string, Partial<SampleRequest>]>([
    ["a stop token", {}],
    ["its own rule", { ends: (tokens) => tokens.length === 2 && tokens[1] === 2 }],
  ])("ends with %s, which it keeps", (what, changes) => {
    const it = start({
      ...changes,
      params: { ...request(1, 9, 0).params, stop_token_ids: what === "a stop token" ? [2] : [] },
    });
    addToken(it, 5, -1);
    expect(it).toMatchObject({ stopped: false, ended: false });
    addToken(it, 2, -2);
    expect(it).toMatchObject({ stopped: true, ended: true });
    expect(sampled(it, 1)).toMatchObject({ tokens: [5, 2], finish_reason: "stop" });
  });

  test("ends where its request is aborted, with what it has", () => {
    const aborting = new AbortController();
    const it = start({ signal: aborting.signal });
    noteAbort(it);
    expect(it.stopped).toBe(false);
    aborting.abort();
    noteAbort(it);
    expect(it).toMatchObject({ stopped: true, ended: true });
    expect(sampled(it, 1)).toMatchObject({ tokens: [], finish_reason: "stop" });
  });

  test("draws what it asks for, within the context", () => {
    expect(tokenLimit(request(10, 5, 0), 20)).toBe(5);
    expect(tokenLimit(request(10, 50, 0), 20)).toBe(10);
  });
});

test.each<[Partial<SampleRequest["params"]> | { prompt_ids: number[] }, string]>([
  [{ prompt_ids: [] }, "the prompt is empty"],
  [{ prompt_ids: [1, 20] }, "token ids must lie in [0, 20) (20)"],
  [{ prompt_ids: [-1] }, "token ids must lie in [0, 20) (-1)"],
  [{ prompt_ids: [1.5] }, "token ids must lie in [0, 20) (1.5)"],
  [{ prompt_ids: Array(8).fill(1) }, "the prompt must leave room in the context of 8 tokens (8)"],
  [{ temperature: -0.1 }, "temperature must be at least 0 (-0.1)"],
  [{ temperature: Number.NaN }, "temperature must be at least 0 (NaN)"],
  [{ temperature: Number.POSITIVE_INFINITY }, "temperature must be at least 0 (Infinity)"],
  [{ top_p: 0 }, "top_p must lie in (0, 1] (0)"],
  [{ top_p: 1.01 }, "top_p must lie in (0, 1] (1.01)"],
  [{ max_tokens: 0 }, "max_tokens must be a whole number above 0 (0)"],
  [{ max_tokens: 1.5 }, "max_tokens must be a whole number above 0 (1.5)"],
])("a request with %j is refused", (change, message) => {
  const model = { config: { vocabSize: 20 }, contextLength: 8, contextText: "8 tokens" } as Transformer;
  const good = request(7, 1, 0);
  const isPrompt = "prompt_ids" in change;
  const bad: SampleRequest = isPrompt ? { ...good, ...change } : { ...good, params: { ...good.params, ...change } };
  expect(() => checkRequest(model, { ...good, params: { ...good.params, temperature: 0 } }, 3)).not.toThrow();
  expect(() => checkRequest(model, { ...good, prompt_ids: [0, 19] }, 3)).not.toThrow();
  expect(() => checkRequest(model, bad, 3)).toThrow(`Cannot sample: ${message}`);
  expect(() => checkRequest(model, bad, 3)).toThrow(expect.objectContaining({ path: "requests[3]" }));
});
