/** How a drawn sequence ends, and what it reports. */
import { describe, expect, test } from "vitest";
import {
  addToken,
  reportTokens,
  runForSequence,
  type Sequence,
  settle,
} from "../../../../src/engine/model/generate/sequence.ts";

describe("a sequence that is drawn", () => {
  const PARAMS = { temperature: 1, top_p: 1, top_k: -1, max_tokens: 3, stop_token_ids: [9] };
  const sequence = (request: object = {}, more: Partial<Sequence> = {}): Sequence =>
    ({
      ...{ index: 4, request: { prompt_ids: [1], params: PARAMS, seed: 0, ...request }, limit: 3 },
      ...{ tokens: [], logprobs: [], top: [], isMasked: false, masked: 0, stopped: false, ended: false, ...more },
    }) as never;
  const drawn = (tokens: number[], request: object = {}) => {
    const it = sequence(request);
    for (const token of tokens) addToken(it, token, -token);
    return it;
  };

  test("ends at a stop token, by its own rule, or at its limit", () => {
    const state = ({ ended, stopped }: Sequence) => ({ ended, stopped });
    expect(state(drawn([1, 2]))).toEqual({ ended: false, stopped: false });
    expect(state(drawn([1, 9]))).toEqual({ ended: true, stopped: true });
    expect(state(drawn([1, 2, 3]))).toEqual({ ended: false, stopped: true });
    expect(state(drawn([1, 2], { ends: (tokens: number[]) => tokens.length === 2 }))).toEqual({
      ended: true,
      stopped: true,
    });
    expect(state(drawn([1], { ends: () => "yes" }))).toEqual({ ended: false, stopped: false });
  });

  test("is reported with why it ended, and alternatives where they were asked for", () => {
    const ends: unknown[] = [];
    const options = { weightVersion: 6, onEnd: (result: object, index: number) => ends.push([result, index]) };
    const result = settle(drawn([1, 9]), options as never);
    expect(result).toEqual({ tokens: [1, 9], logprobs: [-1, -9], finish_reason: "stop", weight_version: 6 });
    expect(ends).toEqual([[result, 4]]);
    const top = settle(drawn([1, 2, 3], { top_logprobs: 2 }), { weightVersion: 0 });
    expect(top).toMatchObject({ finish_reason: "length", top_logprobs: [] });
    expect(result).not.toHaveProperty("top_logprobs");
  });

  test("tells its listener of new tokens alone", () => {
    const told: unknown[] = [];
    const it = drawn([1, 2, 3], { onTokens: (...of: unknown[]) => told.push(of) });
    reportTokens(it, 1);
    reportTokens(it, 3);
    expect(told).toEqual([
      [
        [2, 3],
        [-2, -3],
      ],
    ]);
    const alternatives = drawn([1, 2], { top_logprobs: 1, onTokens: (...of: unknown[]) => told.push(of) });
    (alternatives.top as unknown[]).push(["a"], ["b"]);
    reportTokens(alternatives, 1);
    expect(told[1]).toEqual([[2], [-2], [["b"]]]);
  });

  test("ends with what the request's own code throws, once", () => {
    const it = sequence();
    runForSequence(it, () => {
      throw new Error("first");
    });
    let ran = false;
    runForSequence(it, () => {
      ran = true;
    });
    expect([it.stopped, it.ended, it.failure, ran]).toEqual([true, false, { error: new Error("first") }, false]);
  });
});
