/** Which requests run together: pages shared, held and given back. */
import { describe, expect, test } from "vitest";
import type { SampleRequest } from "../../../../src/engine/contract/backend.ts";
import { Admission, waitingRequests } from "../../../../src/engine/model/generate/admission.ts";
import { promptEndCopies } from "../../../../src/engine/model/generate/packing.ts";
import { PagePool, usablePages } from "../../../../src/engine/model/generate/pages.ts";
import { addToken, type Sequence } from "../../../../src/engine/model/generate/sequence.ts";
import { uniform } from "../../../fixtures/numbers.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";

/** Runs requests through admission as the sampler does, all sequences a token at a time. */
function run(requests: readonly SampleRequest[], { pages, sequences }: { pages: number; sequences: number }) {
  const admission = new Admission(waitingRequests(requests, 96), { pages, sequences });
  const started: number[][] = [];
  let running: Sequence[] = [];
  let prefills = 0;
  while (admission.waits || running.length > 0) {
    const admitted = admission.admit();
    prefills += admitted.prompts.length;
    started.push(admitted.sequences.map(({ index }) => index));
    running.push(...admitted.sequences);
    check(running, { pages, sequences });
    for (const { from, to } of promptEndCopies(admitted.sequences)) expect(from).not.toBe(to);
    for (const sequence of running) addToken(sequence, 5, 0);
    for (const sequence of running.filter(({ stopped }) => stopped)) admission.end(sequence);
    running = running.filter(({ stopped }) => !stopped);
    expect(started.length).toBeLessThan(1000);
  }
  return { started, prefills };
}

/** Every page has one holder, or is of a prompt that its holders share. */
function check(running: readonly Sequence[], { pages, sequences }: { pages: number; sequences: number }): void {
  expect(running.length).toBeLessThanOrEqual(sequences);
  const prompts = new Set(running.map(({ prompt }) => prompt));
  const shared = [...prompts].flatMap((prompt) => [...prompt.pages]);
  const own = running.flatMap((it) => it.pages.slice(it.prompt.pages.length));
  const held = [...shared, ...own];
  expect(new Set(held).size).toBe(held.length);
  expect(Math.max(...held)).toBeLessThan(pages);
  for (const { pages: its, request, limit } of running)
    expect(its.length).toBe(Math.ceil((request.prompt_ids.length + limit - 1) / 16));
}

describe("admission", () => {
  test("shares the pages of a prompt, and holds what each sequence needs", () => {
    const group = Array.from({ length: 8 }, (_, seed) => request(40, 20, seed));
    // Two pages of the prompt; its last 8 tokens and 19 more take two of each sequence's own.
    const { started, prefills } = run(group, { pages: 2 + 8 * 2, sequences: 8 });
    expect(started[0]).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(prefills).toBe(1);
    expect(run(group, { pages: 2 + 3 * 2, sequences: 8 }).started[0]).toEqual([0, 1, 2]);
  });

  test("a late sequence joins those that run with its prompt, without another prefill", () => {
    const group = [10, 30, 10, 10].map((max_tokens, seed) => request(20, max_tokens, seed));
    const { started, prefills } = run(group, { pages: 5, sequences: 8 });
    expect(started.filter((it) => it.length > 0)).toEqual([[0, 1], [2], [3]]);
    expect(prefills).toBe(1);
  });

  test("does not share the pages of a prompt between policies", () => {
    const policies = [{}, {}] as never[];
    const requests = [0, 1, 0].map((of, seed) => ({ ...request(20, 4, seed), policy: policies[of]! }));
    const keys = waitingRequests(requests, 96).map(({ key }) => key);
    expect(keys[0]).toBe(keys[2]);
    expect(keys[0]).not.toBe(keys[1]);
    expect(run(requests, { pages: 32, sequences: 8 }).prefills).toBe(2);
  });

  test("puts a request that comes later behind those that wait", () => {
    const admission = new Admission(waitingRequests([request(3, 2, 0), request(4, 2, 1)], 96), {
      pages: 8,
      sequences: 1,
    });
    const [late] = waitingRequests([request(5, 2, 2)], 96);
    admission.add(late!);
    const order: number[] = [];
    while (admission.waits) {
      const [sequence] = admission.admit().sequences;
      order.push(sequence!.index);
      admission.end(sequence!);
    }
    expect(order).toEqual([0, 1, 2]);
  });

  test("starts requests in their order", () => {
    const { started } = run([request(60, 30, 0), request(1, 2, 1), request(80, 16, 2), request(1, 2, 3)], {
      pages: 7,
      sequences: 8,
    });
    expect(started.filter((it) => it.length > 0)).toEqual([
      [0, 1],
      [2, 3],
    ]);
  });

  test("every request ends, and every page is given back, in any order and pool", () => {
    const next = uniform(8);
    const whole = (below: number) => Math.floor(next() * below);
    for (let round = 0; round < 60; round++) {
      const requests = Array.from({ length: 1 + whole(20) }, (_, seed) =>
        request([1, 5, 16, 31, 32, 40, 64][whole(7)]!, 1 + whole(32), seed),
      );
      const needs = waitingRequests(requests, 96);
      const sequences = 1 + whole(8);
      const most = usablePages(needs, sequences);
      const largest = Math.max(...needs.map(({ shared, own }) => shared + own));
      const { started } = run(requests, { pages: largest + whole(most), sequences });
      expect(started.flat()).toEqual(requests.map((_, index) => index));
    }
  });

  test("the pages that requests can use are those that the largest of them use together", () => {
    const needs = waitingRequests([...REQUESTS], 96);
    const all = usablePages(needs, REQUESTS.length);
    expect(run(REQUESTS, { pages: all, sequences: REQUESTS.length }).started[0]).toHaveLength(REQUESTS.length);
    expect(() => run(REQUESTS, { pages: all - 1, sequences: REQUESTS.length })).not.toThrow();
    expect(run(REQUESTS, { pages: all - 1, sequences: REQUESTS.length }).started[0]).toHaveLength(REQUESTS.length - 1);
  });

  test("a pool gives each page once", () => {
    const pool = new PagePool(5);
    const taken = pool.take(3);
    pool.give(taken.slice(0, 1));
    expect([...taken.slice(1), ...pool.take(3)].sort()).toEqual([0, 1, 2, 3, 4]);
    expect(pool.free).toBe(0);
  });
});
