/** Every field that the official clients' types have is decided: read, accepted where it changes nothing, or refused. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import { CHAT, readChatRequest } from "../../../src/chat/apis/chat/request.ts";
import { readTextRequests, TEXT } from "../../../src/chat/apis/completions/request.ts";
import { COUNT, MESSAGES, readCountRequest, readMessagesRequest } from "../../../src/chat/apis/messages/request.ts";
import { RESPONSE, readResponseRequest } from "../../../src/chat/apis/responses/request.ts";

const require = createRequire(import.meta.url);
const OPENAI = dirname(require.resolve("openai"));
const ANTHROPIC = dirname(require.resolve("@anthropic-ai/sdk"));

/** Names of the fields of an interface in a file of types. */
function fieldsOf(folder: string, file: string, name: string): string[] {
  const text = readFileSync(join(folder, "resources", `${file}.d.ts`), "utf8").replace(/\/\*[\s\S]*?\*\//g, "");
  const body = new RegExp(`export interface ${name}\\b[^{]*\\{([\\s\\S]*?)^\\}`, "m").exec(text)?.[1] ?? "";
  return [...body.matchAll(/^ {4}([a-z_]+)\??:/gm)].map((match) => match[1]!);
}

const USER = { role: "user", content: "hi" };
const CHAT_BODY = { messages: [USER] };
const TEXT_BODY = { prompt: "a" };
const RESPONSE_BODY = { input: "hi" };
const MESSAGE_BODY = { messages: [USER], max_tokens: 3 };
const COUNT_BODY = { messages: [USER] };

const readResponse = (body: unknown) => readResponseRequest(body, () => []).request;
const APIS = [
  [
    "chat completions",
    OPENAI,
    "chat/completions/completions",
    "ChatCompletionCreateParamsBase",
    CHAT,
    readChatRequest,
    CHAT_BODY,
  ],
  ["completions", OPENAI, "completions", "CompletionCreateParamsBase", TEXT, readTextRequests, TEXT_BODY],
  ["responses", OPENAI, "responses/responses", "ResponseCreateParamsBase", RESPONSE, readResponse, RESPONSE_BODY],
  ["messages", ANTHROPIC, "messages/messages", "MessageCreateParamsBase", MESSAGES, readMessagesRequest, MESSAGE_BODY],
  [
    "beta messages",
    ANTHROPIC,
    "beta/messages/messages",
    "MessageCreateParamsBase",
    MESSAGES,
    readMessagesRequest,
    MESSAGE_BODY,
  ],
  ["counted tokens", ANTHROPIC, "messages/messages", "MessageCountTokensParams", COUNT, readCountRequest, COUNT_BODY],
  [
    "counted tokens (beta)",
    ANTHROPIC,
    "beta/messages/messages",
    "MessageCountTokensParams",
    COUNT,
    readCountRequest,
    COUNT_BODY,
  ],
] as const;

describe.each(APIS)("the fields of %s", (_, folder, file, name, shape, read, body) => {
  const fields = fieldsOf(folder, file, name);

  test("are all decided", () => {
    expect(fields.length).toBeGreaterThan(8);
    expect(fields.filter((field) => !(field in shape.shape))).toEqual([]);
  });

  test("may be null, unless the request needs them", () => {
    const plain = read(body);
    for (const field of fields.filter((each) => !(each in body)))
      expect([field, read({ ...body, [field]: null })]).toEqual([field, plain]);
  });

  test("that do not exist are refused", () => {
    expect(() => read({ ...body, messsages: 1 })).toThrow("Cannot use messsages: there is no such parameter (1).");
  });
});

const TOOLS = [{ type: "function", function: { name: "f" } }];

describe("what changes nothing is accepted", () => {
  test.each<[object]>([
    [{ n: 1, frequency_penalty: 0, presence_penalty: 0.0, logit_bias: {}, store: true }],
    [{ logit_bias: { 5: 0 }, functions: [], function_call: "auto", modalities: ["text"] }],
    [{ response_format: { type: "text" }, tool_choice: "auto", service_tier: "auto", parallel_tool_calls: true }],
    [{ tools: [], stream: false, stream_options: null, stop: [], logprobs: false, top_logprobs: 0 }],
    [
      {
        prompt_cache_key: "k",
        prompt_cache_retention: "24h",
        safety_identifier: "s",
        user: "u",
        prediction: { type: "content", content: "x" },
      },
    ],
  ])("chat completions: %j", (body) => {
    expect(readChatRequest({ ...CHAT_BODY, ...body })).toEqual(readChatRequest(CHAT_BODY));
  });

  test.each<[object]>([
    [{ echo: false, best_of: 1, suffix: "", n: 1, logprobs: null, logit_bias: null }],
    [{ stop: null, user: "u" }],
  ])("completions: %j", (body) => {
    expect(readTextRequests({ ...TEXT_BODY, ...body })).toEqual(readTextRequests(TEXT_BODY));
  });

  test.each<[object]>([
    [
      {
        background: false,
        truncation: "disabled",
        context_management: [],
        include: [],
        text: { format: { type: "text" } },
      },
    ],
    [
      {
        store: true,
        service_tier: "default",
        tool_choice: "auto",
        tools: [],
        top_logprobs: 0,
        prompt_cache_options: {},
      },
    ],
  ])("responses: %j", (body) => {
    expect(readResponse({ ...RESPONSE_BODY, ...body })).toEqual(readResponse(RESPONSE_BODY));
  });

  test.each<[object]>([
    [{ mcp_servers: [], container: null, context_management: { edits: [] }, service_tier: "auto", speed: "standard" }],
    [{ context_management: { edits: [{ type: "clear_thinking_20251015", keep: "all" }] }, betas: ["x"], system: [] }],
    [{ context_management: { edits: [{ type: "clear_thinking_20251015", keep: { type: "all" } }] }, fallbacks: [] }],
    [{ tools: [], tool_choice: { type: "auto" }, stop_sequences: [], diagnostics: { previous_message_id: null } }],
  ])("messages: %j", (body) => {
    expect(readMessagesRequest({ ...MESSAGE_BODY, ...body })).toEqual(readMessagesRequest(MESSAGE_BODY));
  });

  test("top_p of 0 samples the most probable token alone", () => {
    for (const request of [
      readChatRequest({ ...CHAT_BODY, top_p: 0 }),
      readMessagesRequest({ ...MESSAGE_BODY, top_p: 0 }),
      readResponse({ ...RESPONSE_BODY, top_p: 0 }),
    ])
      expect(request.params.top_p).toBe(1e-6);
  });

  test("verbosity is a variable of the template, as reasoning_effort is", () => {
    expect(readChatRequest({ ...CHAT_BODY, verbosity: "low" }).variables).toEqual({ verbosity: "low" });
    expect(readResponse({ ...RESPONSE_BODY, text: { verbosity: "high" } }).variables).toEqual({ verbosity: "high" });
  });
});

describe("what would be ignored is refused", () => {
  test.each<[string, (body: unknown) => unknown, object, object, string]>([
    ["chat", readChatRequest, CHAT_BODY, { audio: { voice: "x" } }, "Cannot use audio: the model writes text alone"],
    ["chat", readChatRequest, CHAT_BODY, { frequency_penalty: 0.1 }, "only 0 is supported (0.1)"],
    ["chat", readChatRequest, CHAT_BODY, { web_search_options: {} }, "the model searches nothing"],
    ["chat", readChatRequest, CHAT_BODY, { service_tier: "flex" }, "only auto and default are supported"],
    ["chat", readChatRequest, CHAT_BODY, { tools: TOOLS, tool_choice: { type: "allowed_tools" } }, "tool_choice"],
    ["text", readTextRequests, TEXT_BODY, { best_of: 2 }, "Cannot use best_of: only 1 is supported (2)."],
    ["responses", readResponse, RESPONSE_BODY, { conversation: "c" }, "conversations are not kept"],
    ["responses", readResponse, RESPONSE_BODY, { prompt: { id: "p" } }, "templates of prompts are not kept"],
    ["responses", readResponse, RESPONSE_BODY, { truncation: "auto" }, "only disabled is supported"],
    ["responses", readResponse, RESPONSE_BODY, { top_logprobs: 3 }, "it needs include="],
    ["messages", readMessagesRequest, MESSAGE_BODY, { mcp_servers: [{ url: "x" }] }, "only an empty list is supported"],
    ["messages", readMessagesRequest, MESSAGE_BODY, { container: "c" }, "no code runs here"],
    [
      "messages",
      readMessagesRequest,
      MESSAGE_BODY,
      { context_management: { edits: [{ type: "clear_tool_uses_20250919" }] } },
      "never shortened",
    ],
    ["messages", readMessagesRequest, MESSAGE_BODY, { speed: "fast" }, "only standard is supported"],
    [
      "messages",
      readMessagesRequest,
      MESSAGE_BODY,
      { tools: [{ name: "f", input_schema: {}, defer_loading: true }] },
      "only false is supported",
    ],
  ])("%s %# %#", (_, read, body, more, says) => {
    expect(() => read({ ...body, ...more })).toThrow(says);
  });
});

describe("messages", () => {
  test("of functions are those of tools", () => {
    const call = { name: "f", arguments: '{"a":1}' };
    const { messages } = readChatRequest({
      messages: [
        USER,
        { role: "assistant", content: null, function_call: call },
        { role: "function", name: "f", content: "2" },
      ],
    });
    expect(messages.slice(1)).toEqual([
      {
        role: "assistant",
        content: "",
        tool_calls: [{ type: "function", function: { name: "f", arguments: { a: 1 } } }],
      },
      { role: "tool", name: "f", content: "2" },
    ]);
  });

  test("with null fields are those without", () => {
    const message = { role: "assistant", content: "x" };
    const given = { ...message, audio: null, function_call: null, refusal: null, tool_calls: null };
    expect(readChatRequest({ messages: [given] }).messages).toEqual([message]);
  });

  test("with audio, or with parts of other types, are refused", () => {
    expect(() => readChatRequest({ messages: [{ role: "assistant", content: "x", audio: { id: "a" } }] })).toThrow(
      "holds audio",
    );
    expect(() => readChatRequest({ messages: [{ role: "user", content: [{ type: "file" }] }] })).toThrow(
      "parts of type text",
    );
  });
});
