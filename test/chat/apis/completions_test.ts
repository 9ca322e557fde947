/** OpenAI's `/v1/completions` on an engine that each test writes. */
import { describe, expect, test } from "vitest";
import { type ChatCall, type ChatEngine, createFetch, LOCAL_BASE_URL } from "../../../src/chat/endpoint.ts";
import { ApiError, type TextRequest } from "../../../src/chat/request.ts";
import type { Drawn } from "../../../src/chat/response.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";

type Complete = (request: TextRequest, call: ChatCall) => Promise<readonly Drawn[]>;

async function post(complete: Complete, body: object): Promise<{ status: number; text: string }> {
  const engine: ChatEngine = {
    model: "m",
    tokenizer: chatTokenizer(),
    chat: () => Promise.reject(new Error("unused")),
    complete: (request, call = {}) => complete(request, call),
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
