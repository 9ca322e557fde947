/** OpenAI's API in this process, used by the openai package and the AI SDK. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { createFetch } from "../../src/chat/endpoint.ts";
import { ApiError } from "../../src/chat/request.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";
import { type Script, scriptedPolicy } from "../fixtures/scripted.ts";

const END = "<|im_end|>";
const HELLO = { role: "user" as const, content: "hello" };

function setup(script: Script, more: Partial<Parameters<typeof scriptedPolicy>[0]> = {}) {
  const own = scriptedPolicy({ tokenizer: chatTokenizer(CHATML), script, ...more });
  const { fetch, baseURL, model } = own.policy;
  const openai = new OpenAI({ apiKey: "-", baseURL, fetch: fetch as typeof globalThis.fetch });
  const ai = createOpenAICompatible({ name: "grpu", baseURL, fetch: fetch as typeof globalThis.fetch });
  return { ...own, openai, model, ai: ai(model) };
}

const ADD = {
  type: "function" as const,
  function: {
    name: "add",
    parameters: { type: "object", properties: { a: { type: "number" }, b: { type: "number" } } },
  },
};

/** Calls the tool once, then repeats its result. */
const adder: Script = (prompt) =>
  prompt.includes("tool\n")
    ? `it is ${/tool\n(\d+)/.exec(prompt)?.[1]}${END}`
    : `<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>${END}`;

describe("the openai package", () => {
  test("gets the published shape, and every call is recorded as sampled", async () => {
    const { openai, model, policy, tokenizer } = {
      ...setup(() => `hi the${END}`),
      tokenizer: chatTokenizer(),
    };
    const reply = await openai.chat.completions.create({ model, messages: [HELLO], logprobs: true });
    const [step] = policy.steps;
    expect(reply).toMatchObject({
      object: "chat.completion",
      model: "scripted-model",
      choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "hi the", refusal: null } }],
      usage: {
        prompt_tokens: step!.prompt_ids.length,
        completion_tokens: step!.response_ids.length,
        total_tokens: step!.prompt_ids.length + step!.response_ids.length,
      },
    });
    expect(reply.id).toMatch(/^chatcmpl-/);
    const logged = reply.choices[0]!.logprobs?.content ?? [];
    expect(logged.map(({ token }) => token).join("")).toBe(`hi the${END}`);
    expect(logged.map(({ logprob }) => logprob)).toEqual(step!.logprobs);
    expect(step).toMatchObject({ weight_version: 5, reward: 0, model_response: "hi the" });
    expect(tokenizer.decode(step!.prompt_ids, { skipSpecialTokens: false })).toBe(
      `<|im_start|>user\nhello${END}\n<|im_start|>assistant\n`,
    );
    expect(step!.chat_completions).toEqual([HELLO, { role: "assistant", content: "hi the" }]);
  });

  test("runs a tool loop whose turns form one sequence of tokens", async () => {
    const { openai, model, policy } = setup(adder);
    const messages: OpenAI.ChatCompletionMessageParam[] = [HELLO];
    const first = await openai.chat.completions.create({
      model,
      messages,
      tools: [ADD],
      tool_choice: "auto",
    });
    const [choice] = first.choices;
    expect(choice).toMatchObject({ finish_reason: "tool_calls", message: { content: null } });
    const call = choice!.message.tool_calls?.[0] as OpenAI.ChatCompletionMessageFunctionToolCall;
    expect(call.function).toEqual({ name: "add", arguments: '{"a":1,"b":2}' });
    messages.push(choice!.message, { role: "tool", tool_call_id: call.id, content: "3" });
    const second = await openai.chat.completions.create({ model, messages, tools: [ADD] });
    expect(second.choices[0]!.message.content).toBe("it is 3");
    const [a, b] = policy.steps;
    const whole = [...a!.prompt_ids, ...a!.response_ids];
    expect(b!.prompt_ids.slice(0, whole.length)).toEqual(whole);
  });

  test("streams", async () => {
    const { openai, model, policy } = setup(adder);
    const messages = [HELLO];
    const stream = await openai.chat.completions.create({
      model,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      tools: [ADD],
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    expect(chunks.flatMap(({ choices }) => choices.map(({ finish_reason }) => finish_reason)).at(-1)).toBe(
      "tool_calls",
    );
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(policy.steps[0]!.response_ids.length);
    const whole = await openai.chat.completions.stream({ model, messages }).finalChatCompletion();
    expect(whole.choices[0]!.message.content).toContain("tool_call");
    const called = await openai.chat.completions.stream({ model, messages, tools: [ADD] }).finalChatCompletion();
    expect(called.choices[0]).toMatchObject({
      finish_reason: "tool_calls",
      message: { tool_calls: [{ function: { name: "add", arguments: '{"a":1,"b":2}' } }] },
    });
  });

  test("n choices, stop strings, max_tokens, token ids, and the text endpoint", async () => {
    let calls = 0;
    const { openai, model, policy, backend } = setup(() => `one${calls++} STOP two${END}`);
    const many = await openai.chat.completions.create({
      model,
      messages: [HELLO],
      n: 3,
      stop: "STOP",
      ...({ return_token_ids: true } as object),
    });
    expect(many.choices.map(({ message }) => message.content)).toEqual(["one0 ", "one1 ", "one2 "]);
    expect(new Set(backend.requests.map(({ seed }) => seed)).size).toBe(3);
    expect(many).toMatchObject({ prompt_token_ids: policy.steps[0]!.prompt_ids });
    expect(many.choices[1]).toMatchObject({ token_ids: policy.steps[1]!.response_ids, weight_version: 5 });
    const cut = await openai.chat.completions.create({ model, messages: [HELLO], max_completion_tokens: 2 });
    expect(cut.choices[0]!.finish_reason).toBe("length");
    const text = await openai.completions.create({ model, prompt: "go", stop: ["two"], logprobs: 1 });
    expect(text.choices[0]).toMatchObject({ text: "one4 STOP ", finish_reason: "stop" });
    expect(text.choices[0]!.logprobs?.text_offset?.slice(0, 2)).toEqual([0, 2]);
    expect((await openai.models.list()).data.map(({ id }) => id)).toEqual(["scripted-model"]);
  });

  test("errors have the published form", async () => {
    const { openai, model, refused, fetch, baseURL } = { ...setup(() => END), ...setup(() => END).policy };
    const create = (body: object) =>
      openai.chat.completions.create({
        model,
        messages: [HELLO],
        ...body,
      } as OpenAI.ChatCompletionCreateParams);
    await expect(create({ temperature: -1 })).rejects.toMatchObject({
      status: 400,
      type: "invalid_request_error",
      param: "temperature",
    });
    await expect(create({ tempratur: 1 })).rejects.toThrow(/Cannot use tempratur: there is no such parameter/);
    await expect(create({ tool_choice: "required" })).rejects.toThrow(/Cannot use tool_choice: there are no tools/);
    await expect(create({ response_format: { type: "json_object" } })).rejects.toThrow(
      /Cannot use response_format: this model.s sampler does not support it/,
    );
    await expect(create({ messages: [{ role: "user", content: [{ type: "image_url" }] }] })).rejects.toThrow(
      /message 0: its content must be a string/,
    );
    expect(refused()).toBeUndefined();
    const missing = [
      await fetch(`${baseURL}/embeddings`, { method: "POST", body: "{}" }),
      await fetch(`${baseURL}/models/%zz`),
    ];
    for (const answer of missing)
      expect([answer.status, ((await answer.json()) as { error: { code: string } }).error.code]).toEqual([
        404,
        "unknown_url",
      ]);
  });

  test.each([
    ["messages", 529, "overloaded_error"],
    ["chat/completions", 503, "server_error"],
  ])("an overloaded server in the form of /v1/%s", async (path, status, type) => {
    const it = setup(() => END);
    const chat = () =>
      Promise.reject(new ApiError("Cannot answer: it is busy.", { status: 503, type: "server_error" }));
    const fetch = createFetch({ ...it.policy.engine, model: "m", tokenizer: it.policy.tokenizer, chat });
    const body = JSON.stringify({ model: "m", max_tokens: 4, messages: [{ role: "user", content: "hi" }] });
    const ids = new Set<string>();
    for (let i = 0; i < 2; i++) {
      const answer = await fetch(`${it.policy.baseURL}/${path}`, { method: "POST", body });
      expect(answer.status).toBe(status);
      const { error, request_id } = (await answer.json()) as { error: { type: string }; request_id?: string };
      expect(error.type).toBe(type);
      const id = answer.headers.get(path === "messages" ? "request-id" : "x-request-id")!;
      expect(id).toMatch(/^req_[0-9a-f]{32}$/);
      expect(request_id).toBe(path === "messages" ? id : undefined);
      ids.add(id);
    }
    expect(ids.size).toBe(2);
  });

  test("a prompt that is too long is a 400, which the attempt records", async () => {
    const { openai, model, refused, policy } = setup(() => END, { maxPromptLength: 20 });
    const messages = [{ role: "user" as const, content: "x".repeat(30) }];
    await expect(openai.chat.completions.create({ model, messages })).rejects.toMatchObject({
      status: 400,
      code: "context_length_exceeded",
    });
    expect(refused()).toBe("max_prompt_length_exceeded");
    await expect(policy.client.chat.completions.create({ messages })).rejects.toMatchObject({
      name: "Termination",
    });
  });

  test("the run's sampling parameters win over the agent's, with a warning", async () => {
    const warnings: string[] = [];
    const { openai, model, backend, policy } = setup(() => `x${END}`, {
      params: { temperature: 0.7, max_tokens: 9 },
      warn: (message) => void warnings.push(message),
    });
    await openai.chat.completions.create({ model, messages: [HELLO], temperature: 0, max_tokens: 100 });
    await openai.chat.completions.create({ model, messages: [HELLO], temperature: 0.7, max_tokens: 4 });
    await policy.chat([HELLO], { params: { temperature: 0 } });
    expect(backend.requests.map(({ params }) => [params.temperature, params.max_tokens])).toEqual([
      [0.7, 9],
      [0.7, 4],
      [0, 9],
    ]);
    expect(warnings).toEqual(["An agent requests temperature=0; the run samples with temperature=0.7 (rllm.rollout)."]);
  });

  test.each([
    ["a template without tools", "{{ messages[0].content }}", /chat template has none/],
    ["a model without a template", undefined, /model has no chat template/],
  ])("%s gives a clear error", async (_, template, expected) => {
    const { openai, model } = setup(() => END, { tokenizer: chatTokenizer(template) });
    const request = { model, messages: [HELLO], ...(template !== undefined && { tools: [ADD] }) };
    await expect(openai.chat.completions.create(request)).rejects.toThrow(expected);
  });

  test.each([1, 5])(
    "parallel_tool_calls: false ends Llama's reply with its first call, %i tokens at a time",
    async (pieces) => {
      const call = (a: number) => `{"name": "add", "parameters": {"a": {"b": ${a}}}}`;
      const { openai, model, policy, tokenizer } = {
        ...setup(() => `${call(1)}; ${call(2)}${END}`, { tokenizer: chatTokenizer(HEADERS), pieces }),
        tokenizer: chatTokenizer(HEADERS),
      };
      const ask = { model, messages: [HELLO], tools: [ADD] };
      const one = await openai.chat.completions.create({ ...ask, parallel_tool_calls: false });
      expect(one.choices[0]).toMatchObject({ finish_reason: "tool_calls", message: { tool_calls: [{}] } });
      expect(one.choices[0]!.message.tool_calls).toHaveLength(1);
      expect(tokenizer.decode(policy.steps[0]!.response_ids).replace(/;$/, "")).toBe(call(1));
      const both = await openai.chat.completions.create(ask);
      expect(both.choices[0]!.message.tool_calls).toHaveLength(2);
    },
  );

  test("reads Llama's calls, separates thinking, and can switch it off", async () => {
    const llama = setup(() => `{"name": "add", "parameters": {"a": 1}}${END}`, {
      tokenizer: chatTokenizer(HEADERS),
    });
    const called = await llama.openai.chat.completions.create({
      model: "m",
      messages: [HELLO],
      tools: [ADD],
    });
    expect(called.choices[0]!.message.tool_calls?.[0]).toMatchObject({
      function: { name: "add", arguments: '{"a":1}' },
    });
    const prompts: string[] = [];
    const script: Script = (prompt) => {
      prompts.push(prompt);
      return `<think>why</think>so${END}`;
    };
    const thinker = setup(script, {
      tokenizer: chatTokenizer(THINKING),
      variables: { enable_thinking: false },
    });
    const reply = await thinker.openai.chat.completions.create({ model: "m", messages: [HELLO] });
    expect(reply.choices[0]!.message).toMatchObject({ content: "so", reasoning_content: "why" });
    expect(prompts[0]).toMatch(/assistant\n<think>\n\n<\/think>\n\n$/);
  });
});

describe("the AI SDK", () => {
  test("generates, runs tools to the end, and gives one sequence of tokens", async () => {
    const { ai, policy } = setup(adder);
    const add = tool({
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => String(a + b),
    });
    const { text, steps } = await generateText({
      model: ai,
      prompt: "hello",
      tools: { add },
      stopWhen: stepCountIs(3),
    });
    expect(text).toBe("it is 3");
    expect(steps).toHaveLength(2);
    const [a, b] = policy.steps;
    const whole = [...a!.prompt_ids, ...a!.response_ids];
    expect(b!.prompt_ids.slice(0, whole.length)).toEqual(whole);
  });

  test("streams text", async () => {
    const { ai } = setup(() => `hi the${END}`);
    const parts: string[] = [];
    for await (const part of streamText({ model: ai, prompt: "hello" }).textStream) parts.push(part);
    expect(parts.join("")).toBe("hi the");
  });

  test("streams a tool loop", async () => {
    const { ai, policy } = setup(adder);
    const add = tool({
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => String(a + b),
    });
    const result = streamText({ model: ai, prompt: "hello", tools: { add }, stopWhen: stepCountIs(3) });
    expect(await result.text).toBe("it is 3");
    expect(policy.steps).toHaveLength(2);
  });
});

describe("policy.client", () => {
  test("answers complete and in chunks, without a library", async () => {
    const { policy } = setup(() => `hi${END}`);
    const whole = await policy.client.chat.completions.create({ messages: [HELLO] });
    expect(whole.choices[0]!.message.content).toBe("hi");
    const chunks = await policy.client.chat.completions.create({ messages: [HELLO], stream: true });
    let text = "";
    for await (const chunk of chunks) text += chunk.choices[0]!.delta.content ?? "";
    expect(text).toBe("hi");
    expect(policy.steps).toHaveLength(2);
  });
});

test("agents on one policy have separate trajectories and draws", async () => {
  const { policy, trajectories, backend } = setup(() => `hi${END}`);
  const [solver, other, judge] = [policy.agent("solver"), policy.agent("solver"), policy.agent("judge")];
  await Promise.all([solver.chat([HELLO]), other.chat([HELLO]), policy.complete("x")]);
  await judge.client.chat.completions.create({ messages: [HELLO] });
  solver.annotate({ reward: 0.5, action: "hi" });
  expect(new Set(backend.requests.map(({ seed }) => seed)).size).toBe(4);
  expect(trajectories().map(({ name, reward, steps }) => [name, reward, steps.length])).toEqual([
    ["", 0, 1],
    ["solver", 0.5, 1],
    ["solver", 0, 1],
    ["judge", 0, 1],
  ]);
  expect(judge.trajectory(2, { signals: { s: 1 } })).toMatchObject({
    name: "judge",
    reward: 2,
    signals: { s: 1 },
  });
});
