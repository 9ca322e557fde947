/** Bodies of OpenAI's requests: what each parameter becomes, and which are refused. */
import { describe, expect, test } from "vitest";
import { ApiError, readChatRequest, readTextRequest } from "../../src/chat/request.ts";

const messages = [{ role: "user", content: "hi" }];
const DEFAULTS = {
  params: {},
  stop: [],
  n: 1,
  stream: false,
  includeUsage: false,
  returnTokenIds: false,
  logprobs: false,
};
const TOOL = { type: "function", function: { name: "add" } };

describe("readChatRequest()", () => {
  test.each<[body: object, read: object]>([
    [{}, {}],
    [{ temperature: 0, top_p: 0.5, top_k: -1 }, { params: { temperature: 0, top_p: 0.5, top_k: -1 } }],
    [{ temperature: null, max_tokens: null, n: null, stop: null, stream: null, logprobs: null }, {}],
    [{ max_tokens: 5 }, { params: { max_tokens: 5 } }],
    [{ max_completion_tokens: 7 }, { params: { max_tokens: 7 } }],
    [{ max_tokens: 5, max_completion_tokens: 7 }, { params: { max_tokens: 7 } }],
    [{ stop: "a" }, { stop: ["a"] }],
    [{ stop: ["a", "b"] }, { stop: ["a", "b"] }],
    [
      { n: 3, stream: true, logprobs: true, return_token_ids: true },
      { n: 3, stream: true, logprobs: true, returnTokenIds: true },
    ],
    [{ stream_options: { include_usage: true } }, { includeUsage: true }],
    [{ tools: [TOOL] }, { tools: [TOOL] }],
    [{ tools: [TOOL], tool_choice: "auto" }, { tools: [TOOL] }],
    [{ tools: [TOOL], tool_choice: "none" }, {}],
    [{ tools: [] }, {}],
    [{ tools: null }, {}],
    [{ chat_template_kwargs: { enable_thinking: false } }, { variables: { enable_thinking: false } }],
    [{ model: "m", seed: 1, user: "u", presence_penalty: 0, store: false, top_logprobs: 0 }, {}],
    [{ metadata: { role: "judge" } }, { metadata: { role: "judge" } }],
  ])("reads %j", (body, read) => {
    expect(readChatRequest({ messages, ...body })).toStrictEqual({ ...DEFAULTS, messages, ...read });
  });

  test.each<[body: object, param: string, says: RegExp]>([
    [{ temperature: -1 }, "temperature", /^Cannot use temperature: /],
    [{ top_p: 0 }, "top_p", /^Cannot use top_p: /],
    [{ top_k: -2 }, "top_k", /^Cannot use top_k: /],
    [{ n: 0 }, "n", /^Cannot use n: /],
    [{ frequency_penalty: 1 }, "frequency_penalty", /: only 0 is supported\.$/],
    [{ tool_choice: "required" }, "tool_choice", /: only auto and none are supported\.$/],
    [
      { stream_options: { include_usage: 1 } },
      "stream_options.include_usage",
      /^Cannot use stream_options\.include_usage: /,
    ],
    [{ best_of: 1 }, "best_of", /^Cannot use best_of: there is no such parameter\.$/],
    [{ messages: [] }, "messages", /^Cannot read the messages: /],
    [{ messages: undefined }, "messages", /^Cannot read the messages: .*\(undefined\)/],
  ])("refuses %j", (body, param, says) => {
    expect(() => readChatRequest({ messages, ...body })).toThrow(
      expect.objectContaining({
        message: expect.stringMatching(says),
        status: 400,
        type: "invalid_request_error",
        code: null,
        param,
      }),
    );
  });

  test.each([null, "x", []])("refuses the body %j", (body) => {
    expect(() => readChatRequest(body)).toThrow(/^Cannot use the body: /);
    expect(() => readChatRequest(body)).toThrow(ApiError);
  });
});

describe("readTextRequest()", () => {
  test.each<[body: object, read: object]>([
    [{ prompt: "a" }, { prompt: "a" }],
    [{ prompt: [0, 7] }, { prompt: [0, 7] }],
    [
      { prompt: "a", logprobs: 0 },
      { prompt: "a", logprobs: true },
    ],
    [
      { prompt: "a", logprobs: 1 },
      { prompt: "a", logprobs: true },
    ],
    [{ prompt: "a", logprobs: null }, { prompt: "a" }],
    [
      { prompt: "a", max_tokens: 3, stop: "b", echo: false },
      { prompt: "a", params: { max_tokens: 3 }, stop: ["b"] },
    ],
  ])("reads %j", (body, read) => {
    expect(readTextRequest(body)).toStrictEqual({ ...DEFAULTS, ...read });
  });

  test.each<[body: object, says: string]>([
    [{}, "Cannot use prompt: it must be one text, or its token ids."],
    [{ prompt: [] }, "Cannot use prompt: "],
    [{ prompt: [-1] }, "Cannot use prompt.0: "],
    [{ prompt: 7 }, "Cannot use prompt: it must be one text, or its token ids."],
    [{ prompt: "a", logprobs: 2 }, "Cannot use logprobs: only the sampled token's log-prob is available."],
    [{ prompt: "a", best_of: 2 }, "Cannot use best_of: only 1 is supported."],
  ])("refuses %j", (body, says) => {
    expect(() => readTextRequest(body)).toThrow(says);
  });
});
