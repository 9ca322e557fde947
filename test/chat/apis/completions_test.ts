/** OpenAI's `/v1/completions` on an engine that each test writes. */
import { describe, expect, test } from "vitest";
import { type ChatCall, type ChatEngine, createFetch, LOCAL_BASE_URL } from "../../../src/chat/endpoint.ts";
import { ApiError, type TextRequest } from "../../../src/chat/request.ts";
import type { Drawn } from "../../../src/chat/response.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";

type Complete = (request: TextRequest, call: ChatCall) => Promise<readonly Drawn[]>;

async function post(
  complete: Complete,
  body: object,
  more: Partial<ChatEngine> = {},
): Promise<{ status: number; text: string }> {
  const engine: ChatEngine = {
    model: "m",
    tokenizer: chatTokenizer(),
    chat: () => Promise.reject(new Error("unused")),
    complete: (request, call = {}) => complete(request, call),
    ...more,
  };
  const init = { method: "POST", body: JSON.stringify(body) };
  const answer = await createFetch(engine)(`${LOCAL_BASE_URL}/completions`, init);
  return { status: answer.status, text: await answer.text() };
}

describe("a prompt that fails", () => {
  const FAULT = new ApiError("Cannot use prompt: it is too long.");

  /** Samples without end, until its caller gives up. */
  const endless = (signal: AbortSignal) =>
    new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

  test.each([false, true])("aborts the others of its request; streamed: %s", async (stream) => {
    const signals: AbortSignal[] = [];
    const complete: Complete = async ({ prompt }, { signal, onStart, onTokens }) => {
      signals.push(signal!);
      if (prompt === "long") throw FAULT;
      onStart?.(0, { prompt_ids: [1] });
      onTokens?.(0, [40], [-1]);
      return endless(signal!);
    };
    const { status, text } = await post(complete, { prompt: ["ok", "long", "fine"], stream });
    expect(status).toBe(stream ? 200 : 400);
    expect(text).toContain(FAULT.message);
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true, true]);
  });
});

describe("log-probs", () => {
  const tokenizer = chatTokenizer();
  const TEXT = "aé🙂b";
  const END = "<|im_end|>";

  /** What the body of a whole reply says, and the joined chunks of a streamed one. */
  async function logprobsOf(tokens: readonly number[], more: Partial<Drawn> = {}) {
    const logprobs = tokens.map((_, i) => -i);
    const drawn: Drawn = {
      prompt_ids: [1],
      response_ids: tokens,
      logprobs,
      finish_reason: "stop",
      model_response: tokenizer.decode(tokens),
      ...more,
    };
    const complete: Complete = async (_, { onStart, onTokens }) => {
      onStart?.(0, { prompt_ids: [1] });
      for (const [i, token] of tokens.entries())
        onTokens?.(0, [token], [-i], more.top_logprobs && [more.top_logprobs[i]!]);
      return [drawn];
    };
    const whole = JSON.parse((await post(complete, { prompt: "a", logprobs: 5 })).text);
    const { text } = await post(complete, { prompt: "a", logprobs: 5, stream: true });
    const chunks = text.split("\n\n").flatMap((line) => (line.startsWith("data: {") ? JSON.parse(line.slice(6)) : []));
    const streamed = chunks.flatMap(({ choices }) => choices[0]?.logprobs?.text_offset ?? []);
    return { ...whole.choices[0], streamed };
  }

  test("offsets are places in the text, also of tokens that are parts of a character or no text", async () => {
    const tokens = tokenizer.encode(TEXT + END, { addSpecialTokens: false });
    const { text, logprobs, streamed } = await logprobsOf(tokens);
    expect(text).toBe(TEXT);
    // Some token begins within a character: its text begins where the character does.
    const wholes = tokens.map((_, i) => tokenizer.decode(tokens.slice(0, i)).replace(/\uFFFD+$/, "").length);
    expect(new Set(wholes).size).toBeLessThan(wholes.length - 1);
    expect(logprobs.text_offset).toEqual(wholes);
    expect(logprobs.text_offset.at(-1)).toBe(TEXT.length);
    expect(streamed).toEqual(wholes);
  });

  test("the sampled token is among the alternatives, whether it is likely or not", async () => {
    const [a, b, c] = ["a", "b", "c"].map((text) => tokenizer.encode(text, { addSpecialTokens: false })[0]!);
    const top = [
      { token: b!, logprob: -0.5 },
      { token: c!, logprob: -0.75 },
    ];
    const { logprobs } = await logprobsOf([a!, b!], { top_logprobs: [top, [{ token: b!, logprob: -1 }]] });
    expect(logprobs.top_logprobs).toEqual([{ b: -0.5, c: -0.75, a: 0 }, { b: -1 }]);
  });

  test.each([
    [true, 1, [{ b: -0.5, a: 0 }]],
    [false, 1, null],
    [true, 0, null],
  ])("an engine with alternatives: %s, logprobs: %s", async (hasAlternatives, logprobs, expected) => {
    const [a, b] = ["a", "b"].map((text) => tokenizer.encode(text, { addSpecialTokens: false })[0]!);
    const complete: Complete = async ({ topLogprobs }) => [
      {
        prompt_ids: [1],
        response_ids: [a!],
        logprobs: [0],
        finish_reason: "stop",
        model_response: "a",
        ...(topLogprobs && { top_logprobs: [[{ token: b!, logprob: -0.5 }]] }),
      },
    ];
    const { text } = await post(complete, { prompt: "a", logprobs }, { hasAlternatives });
    expect(JSON.parse(text).choices[0].logprobs).toMatchObject({ token_logprobs: [0], top_logprobs: expected });
  });

  test("alternatives of one text are one, the likeliest; those of parts of a character keep their bytes", async () => {
    const [a] = tokenizer.encode("a", { addSpecialTokens: false });
    const parts = tokenizer.encode("🙂", { addSpecialTokens: false });
    expect(parts.length).toBeGreaterThan(1);
    const top_logprobs = [[a!, ...parts, a!].map((token, i) => ({ token, logprob: -1 - i }))];
    const { logprobs } = await logprobsOf([a!], { top_logprobs });
    const [top] = logprobs.top_logprobs as [Record<string, number>];
    expect(top.a).toBe(-1);
    expect(Object.values(top)).toEqual([a, ...parts].map((_, i) => -1 - i));
    expect(Object.keys(top)[1]).toMatch(/^bytes:(\\x[0-9a-f]{2})+$/);
  });
});
