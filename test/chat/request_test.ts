/** Bodies of OpenAI's requests: what each parameter becomes, and which are refused. */
import { describe, expect, test } from "vitest";
import { readChatRequest } from "../../src/chat/apis/chat/request.ts";
import { readTextRequest, readTextRequests } from "../../src/chat/apis/completions/request.ts";
import { ApiError } from "../../src/chat/request.ts";

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
    [{ model: "m", user: "u", presence_penalty: 0, store: true, top_logprobs: 0, logit_bias: {}, min_p: 0 }, {}],
    [
      { seed: 1, metadata: { a: 1 }, logprobs: true, top_logprobs: 5 },
      { seed: 1, metadata: { a: 1 }, logprobs: true, topLogprobs: 5 },
    ],
    [
      { tools: [TOOL], tool_choice: "required" },
      { tools: [TOOL], toolChoice: "required" },
    ],
    [
      { tools: [TOOL], tool_choice: { type: "function", function: { name: "add" } }, parallel_tool_calls: false },
      { tools: [TOOL], toolChoice: { name: "add" }, parallelToolCalls: false },
    ],
    [{ response_format: { type: "text" } }, {}],
    [{ response_format: null }, {}],
    [{ response_format: { type: "json_object" } }, { responseFormat: { type: "json_object" } }],
    [
      {
        response_format: { type: "json_schema", json_schema: { name: "x", schema: { type: "object" }, strict: true } },
      },
      { responseFormat: { type: "json_schema", name: "x", schema: { type: "object" } } },
    ],
    [{ reasoning_effort: "low" }, { variables: { reasoning_effort: "low" } }],
  ])("reads %j", (body, read) => {
    expect(readChatRequest({ messages, ...body })).toStrictEqual({ ...DEFAULTS, messages, ...read });
  });

  test.each<[body: object, param: string, says: RegExp]>([
    [{ temperature: -1 }, "temperature", /^Cannot use temperature: it must be at least 0 \(-1\)\.$/],
    [{ top_p: -0.1 }, "top_p", /^Cannot use top_p: it must be at least 0 \(-0\.1\)\.$/],
    [{ top_k: -2 }, "top_k", /^Cannot use top_k: it must be at least -1 \(-2\)\.$/],
    [{ top_k: 1.5 }, "top_k", /^Cannot use top_k: it must be a whole number \(1\.5\)\.$/],
    [{ n: 0 }, "n", /^Cannot use n: it must be at least 1 \(0\)\.$/],
    [{ stop: [3] }, "stop", /^Cannot use stop: it must be one text, or several \(\[3\]\)\.$/],
    [{ frequency_penalty: 1 }, "frequency_penalty", /: only 0 is supported \(1\)\.$/],
    [{ tool_choice: "required" }, "tool_choice", /^Cannot use tool_choice: there are no tools\.$/],
    [
      { tool_choice: "sometimes" },
      "tool_choice",
      /: only auto, none, required and a function are supported \("sometimes"\)\.$/,
    ],
    [
      { tools: [TOOL], tool_choice: { type: "function", function: { name: "sub" } } },
      "tool_choice",
      /there is no tool sub/,
    ],
    [{ top_logprobs: 2 }, "top_logprobs", /it needs logprobs=true/],
    [{ logit_bias: { 5: 1 } }, "logit_bias.5", /^Cannot use logit_bias\.5: only an empty one is supported \(1\)\.$/],
    [
      { response_format: { type: "xml" } },
      "response_format.type",
      /^Cannot use response_format\.type: it has none of the known forms \("xml"\)\.$/,
    ],
    [{ verbosity: "loud" }, "verbosity", /^Cannot use verbosity: it must be "low" or "medium" or "high" \("loud"\)\.$/],
    [{ functions: [{ name: "f" }] }, "functions", /^Cannot use functions: send tools, which replaced it /],
    [{ modalities: ["audio"] }, "modalities.0", /^Cannot use modalities\.0: it must be "text" \("audio"\)\.$/],
    [{ n: 129 }, "n", /^Cannot use n: it must be at most 128 \(129\)\.$/],
    [
      { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] },
      "messages",
      /parts of type text/,
    ],
    [
      { stream_options: { include_usage: 1 } },
      "stream_options.include_usage",
      /^Cannot use stream_options\.include_usage: it must be true or false \(1\)\.$/,
    ],
    [{ best_of: 1 }, "best_of", /^Cannot use best_of: there is no such parameter \(1\)\.$/],
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
      { prompt: "a", logprobs: true, topLogprobs: 1 },
    ],
    [{ prompt: "a", logprobs: null }, { prompt: "a" }],
    [
      { prompt: "a", logprobs: 5 },
      { prompt: "a", logprobs: true, topLogprobs: 5 },
    ],
    [
      { prompt: "a", max_tokens: 3, stop: "b", echo: false },
      { prompt: "a", params: { max_tokens: 3 }, stop: ["b"] },
    ],
  ])("reads %j", (body, read) => {
    expect(readTextRequest(body)).toStrictEqual({ ...DEFAULTS, ...read });
  });

  test.each<[body: object, says: string]>([
    [{}, "Cannot use prompt: it must be one text, or its token ids, or a list of either (undefined)."],
    [{ prompt: [] }, "Cannot use prompt: it must be one text, or its token ids, or a list of either ([])."],
    [{ prompt: [1.5] }, "Cannot use prompt: it must be one text, or its token ids, or a list of either ([1.5])."],
    [{ prompt: [-1] }, "Cannot use prompt: it must be one text, or its token ids, or a list of either ([-1])."],
    [{ prompt: 7 }, "Cannot use prompt: it must be one text, or its token ids, or a list of either (7)."],
    [{ prompt: "a", logprobs: 21 }, "Cannot use logprobs: "],
    [{ prompt: ["a", "b"] }, "Cannot use prompt: it must be one text, or its token ids."],
    [{ prompt: "a", suffix: "b" }, 'Cannot use suffix: only an empty one is supported ("b").'],
    [{ prompt: "a", best_of: 2 }, "Cannot use best_of: only 1 is supported (2)."],
  ])("refuses %j", (body, says) => {
    expect(() => readTextRequest(body)).toThrow(says);
  });
});

test("readTextRequests() makes one request of each prompt", () => {
  const prompts = (prompt: unknown) => readTextRequests({ prompt, n: 2 }).map((request) => [request.prompt, request.n]);
  expect(prompts(["a", "b"])).toEqual([
    ["a", 2],
    ["b", 2],
  ]);
  expect(prompts([[1, 2], [3]])).toEqual([
    [[1, 2], 2],
    [[3], 2],
  ]);
  expect(prompts([1, 2])).toEqual([[[1, 2], 2]]);
});
