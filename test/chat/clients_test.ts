/** Clients of other makers, unmodified: each over a listening server and in this process, streaming, with tools. */
import type { AddressInfo } from "node:net";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { serve } from "@hono/node-server";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { generateText, type LanguageModel, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import type { FetchFunction } from "../../src/chat/endpoint.ts";
import { CHATML, chatTokenizer, THINKING } from "../fixtures/chat.ts";
import { adder, scriptedPolicy } from "../fixtures/scripted.ts";

const END = "<|im_end|>";

/** Sessions by the first part of the path, as many as a test asks for. */
const sessions = new Map<string, FetchFunction>();
let server: ReturnType<typeof serve>;
let origin = "";

beforeAll(async () => {
  server = serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: (request) => sessions.get(new URL(request.url).pathname.split("/")[1]!)!(request),
  });
  await new Promise((resolve) => server.once("listening", resolve));
  origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => void server.close());

const PLACES = ["in this process", "over HTTP"] as const;

function setup(place: (typeof PLACES)[number], more: Partial<Parameters<typeof scriptedPolicy>[0]> = {}) {
  const own = scriptedPolicy({ tokenizer: chatTokenizer(THINKING), script: adder, pieces: 3, ...more });
  const name = `session${sessions.size}`;
  sessions.set(name, own.policy.fetch);
  const isLocal = place === "in this process";
  const fetch = isLocal ? (own.policy.fetch as typeof globalThis.fetch) : globalThis.fetch;
  const root = isLocal ? own.policy.baseURL.replace(/\/v1$/, "") : `${origin}/${name}`;
  return { ...own, model: own.policy.model, connection: { apiKey: "-", baseURL: `${root}/v1`, fetch }, root };
}

/** Both turns are one sequence of tokens: what was sampled stands in the next prompt. */
function expectOneSequence({ policy }: ReturnType<typeof setup>): void {
  const [first, second, ...others] = policy.steps;
  const whole = [...first!.prompt_ids, ...first!.response_ids];
  expect(others).toEqual([]);
  const kept = second!.prompt_ids;
  expect(chatTokenizer().decode(kept, { skipSpecialTokens: false })).toContain("let me see\n<tool_call>");
  expect(kept.slice(0, whole.length)).toEqual(whole);
}

const PARAMETERS = { type: "object", properties: { a: { type: "number" }, b: { type: "number" } } };
const ADD = { type: "function" as const, function: { name: "add", parameters: PARAMETERS } };
const INPUT = z.object({ a: z.number(), b: z.number() });
const add = ({ a, b }: z.infer<typeof INPUT>) => String(a + b);
const ASK = { role: "user" as const, content: "add 1 and 2" };

describe.each(PLACES)("openai %s", (place) => {
  test("chat: a tool loop of streams with reasoning", async () => {
    const it = setup(place);
    const openai = new OpenAI(it.connection);
    const messages: OpenAI.ChatCompletionMessageParam[] = [ASK];
    const first = openai.chat.completions.stream({ model: it.model, messages, tools: [ADD] });
    const reasoning: string[] = [];
    const contents: string[] = [];
    for await (const { choices } of first) {
      const delta = choices[0]?.delta as { content?: string | null; reasoning_content?: string } | undefined;
      if (delta?.reasoning_content) reasoning.push(delta.reasoning_content);
      if (delta?.content) contents.push(delta.content);
    }
    expect(reasoning.join("")).toBe("add them");
    expect(reasoning.length).toBeGreaterThan(1);
    expect(contents.join("")).toBe("let me see");
    expect(contents.length).toBeGreaterThan(1);
    const { message } = (await first.finalChatCompletion()).choices[0]!;
    messages.push(message);
    for (const call of message.tool_calls ?? [])
      if (call.type === "function")
        messages.push({ role: "tool", tool_call_id: call.id, content: add(JSON.parse(call.function.arguments)) });
    const second = await openai.chat.completions.create({ model: it.model, messages, tools: [ADD] });
    expect(second.choices[0]!.message).toMatchObject({ content: "it is 3, 日本 🙂", reasoning_content: "got it" });
    expect(second.usage?.completion_tokens_details?.reasoning_tokens).toBeGreaterThan(2);
    expectOneSequence(it);
  });

  test("chat: n streams with stop strings, log-probs and token ids", async () => {
    let calls = 0;
    const it = setup(place, { script: () => `one é${calls++} STOP two${END}`, tokenizer: chatTokenizer(CHATML) });
    const openai = new OpenAI(it.connection);
    const stream = await openai.chat.completions.create({
      model: it.model,
      messages: [ASK],
      n: 2,
      stop: "STOP",
      logprobs: true,
      stream: true,
      stream_options: { include_usage: true },
      ...({ return_token_ids: true } as object),
    });
    const texts = ["", ""];
    const ids: number[][] = [[], []];
    const logprobs: number[][] = [[], []];
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) {
      usage = chunk.usage ?? usage;
      for (const { index, delta, logprobs: own, ...more } of chunk.choices) {
        texts[index] += delta.content ?? "";
        ids[index]!.push(...((more as { token_ids?: number[] }).token_ids ?? []));
        logprobs[index]!.push(...(own?.content ?? []).map(({ logprob }) => logprob));
      }
    }
    const { steps } = it.policy;
    expect([...texts].sort()).toEqual(["one é0 ", "one é1 "]);
    expect(ids).toEqual(steps.map(({ response_ids }) => response_ids));
    expect(logprobs).toEqual(steps.map((step) => step.logprobs));
    expect(usage?.completion_tokens).toBe(steps.reduce((sum, { response_ids }) => sum + response_ids.length, 0));
  });

  test("completions: a batch of prompts, whole and streamed", async () => {
    const it = setup(place, { script: (prompt) => `${prompt}!${END}` });
    const openai = new OpenAI(it.connection);
    const body = { model: it.model, prompt: ["one", "the other"], n: 2, max_tokens: 50 };
    const whole = await openai.completions.create(body);
    const expected = ["one!", "one!", "the other!", "the other!"];
    expect(whole.choices.map(({ index, text }) => [index, text])).toEqual(expected.map((text, i) => [i, text]));
    const prompts = it.policy.steps.filter((_, i) => i % 2 === 0).map(({ prompt_ids }) => prompt_ids.length);
    expect(whole.usage?.prompt_tokens).toBe(prompts[0]! + prompts[1]!);
    const texts = ["", "", "", ""];
    const reasons: unknown[] = [];
    for await (const { choices } of await openai.completions.create({ ...body, stream: true }))
      for (const { index, text, finish_reason } of choices) {
        texts[index] += text;
        if (finish_reason) reasons.push(finish_reason);
      }
    expect([texts, reasons]).toEqual([expected, ["stop", "stop", "stop", "stop"]]);
  });

  test("responses: streamed tools, items sent back, and a response that is continued by its id", async () => {
    const it = setup(place);
    const openai = new OpenAI(it.connection);
    const tools = [{ type: "function" as const, name: "add", parameters: PARAMETERS, strict: false }];
    const input: OpenAI.Responses.ResponseInputItem[] = [ASK];
    const stream = openai.responses.stream({ model: it.model, input, tools });
    const types = new Set<string>();
    let numbered = 0;
    for await (const event of stream) {
      types.add(event.type);
      expect(event.sequence_number).toBe(numbered++);
    }
    const first = await stream.finalResponse();
    expect([...types]).toEqual(
      expect.arrayContaining([
        "response.created",
        "response.output_item.added",
        "response.reasoning_text.delta",
        "response.output_text.delta",
        "response.function_call_arguments.done",
        "response.completed",
      ]),
    );
    expect(first.output.map(({ type }) => type)).toEqual(["reasoning", "message", "function_call"]);
    expect(first.output_text).toBe("let me see");
    const call = first.output.find((item) => item.type === "function_call")!;
    const result = {
      type: "function_call_output" as const,
      call_id: call.call_id,
      output: add(JSON.parse(call.arguments)),
    };
    const items = first.output as OpenAI.Responses.ResponseInputItem[];
    const second = await openai.responses.create({ model: it.model, input: [...input, ...items, result], tools });
    expect(second.output_text).toBe("it is 3, 日本 🙂");
    expectOneSequence(it);
    const continued = await openai.responses.create({
      model: it.model,
      previous_response_id: first.id,
      input: [result],
      tools,
    });
    expect(continued.output_text).toBe("it is 3, 日本 🙂");
    expect(it.policy.steps[2]!.prompt_ids).toEqual(it.policy.steps[1]!.prompt_ids);
    expect((await openai.responses.retrieve(first.id)).id).toBe(first.id);
    await openai.responses.delete(first.id);
    await expect(openai.responses.retrieve(first.id)).rejects.toMatchObject({ status: 404 });
    const unknown = openai.responses.create({ model: it.model, previous_response_id: "resp_x", input: "hi" });
    await expect(unknown).rejects.toMatchObject({ status: 400, param: "previous_response_id" });
  });

  test("models, and a model that is not served", async () => {
    const { connection, model } = setup(place);
    const openai = new OpenAI(connection);
    expect((await openai.models.retrieve(model)).id).toBe(model);
    await expect(openai.models.retrieve("gpt-5")).rejects.toMatchObject({ status: 404, code: "model_not_found" });
  });

  test("a client that leaves ends the sampling, and one that is patient does not", async () => {
    const it = setup(place, { script: () => `${"word ".repeat(40)}${END}`, pieces: 1 });
    const openai = new OpenAI(it.connection);
    const request = { model: it.model, messages: [ASK] };
    const ended = it.backend.requests;
    const stream = await openai.chat.completions.create({ ...request, stream: true });
    for await (const { choices } of stream) if (choices[0]?.delta.content) break;
    const [first] = ended;
    // The connection's end arrives at the server a moment later.
    await expect.poll(() => first!.ends?.([]), { timeout: 2000 }).toBe(true);
    expect(it.policy.steps).toEqual([]);
    const controller = new AbortController();
    const waiting = openai.chat.completions.create(request, { signal: controller.signal });
    await expect.poll(() => ended.length, { timeout: 2000 }).toBe(2);
    controller.abort();
    await expect(waiting).rejects.toThrow(OpenAI.APIUserAbortError);
    await expect.poll(() => ended[1]!.ends?.([]), { timeout: 2000 }).toBe(true);
    const whole = await openai.chat.completions.create(request);
    expect(whole.choices[0]!.message.content).toBe("word ".repeat(40));
    expect(ended[2]!.ends?.([])).toBe(false);
  });

  test("a sampler that fails after a stream has started ends it with an error", async () => {
    const it = setup(place, {
      script: () => {
        throw new Error("the device is lost");
      },
    });
    const openai = new OpenAI({ ...it.connection, maxRetries: 0 });
    const request = { model: it.model, messages: [ASK] };
    const drain = async (stream: AsyncIterable<unknown>) => {
      for await (const _ of stream);
    };
    const stream = await openai.chat.completions.create({ ...request, stream: true });
    await expect(drain(stream)).rejects.toThrow(/the device is lost/);
    await expect(openai.chat.completions.create(request)).rejects.toMatchObject({ status: 500 });
    const { finalResponse } = {
      finalResponse: () => openai.responses.stream({ model: it.model, input: "x" }).finalResponse(),
    };
    await expect(finalResponse()).resolves.toMatchObject({
      status: "failed",
      error: { message: "the device is lost" },
    });
    const anthropic = new Anthropic({ ...it.connection, baseURL: it.root, maxRetries: 0 });
    const messages = anthropic.messages.stream({ ...request, max_tokens: 9 });
    await expect(messages.finalMessage()).rejects.toThrow(/the device is lost/);
  });
});

describe.each(PLACES)("anthropic %s", (place) => {
  const tools = [{ name: "add", input_schema: PARAMETERS as Anthropic.Tool.InputSchema }];

  test("a tool loop of streams with thinking", async () => {
    const it = setup(place);
    const anthropic = new Anthropic({ ...it.connection, baseURL: it.root });
    const common = { model: it.model, max_tokens: 200, system: "be brief", tools };
    const messages: Anthropic.MessageParam[] = [ASK];
    const stream = anthropic.messages.stream({ ...common, messages });
    const texts: string[] = [];
    stream.on("text", (text) => void texts.push(text));
    const first = await stream.finalMessage();
    expect(texts.length).toBeGreaterThan(1);
    expect(first).toMatchObject({
      stop_reason: "tool_use",
      content: [
        { type: "thinking", thinking: "add them" },
        { type: "text", text: "let me see" },
        { type: "tool_use", name: "add", input: { a: 1, b: 2 } },
      ],
    });
    const results = first.content.flatMap((block) =>
      block.type === "tool_use"
        ? [{ type: "tool_result" as const, tool_use_id: block.id, content: add(INPUT.parse(block.input)) }]
        : [],
    );
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: results });
    const second = await anthropic.messages.create({ ...common, messages });
    expect(second.content.at(-1)).toMatchObject({ type: "text", text: "it is 3, 日本 🙂" });
    expect(second).toMatchObject({ stop_reason: "end_turn", usage: { output_tokens: expect.any(Number) } });
    expectOneSequence(it);
    expect(chatTokenizer().decode(it.policy.steps[0]!.prompt_ids, { skipSpecialTokens: false })).toContain(
      "<|im_start|>system\nbe brief",
    );
  });

  test("stop sequences, lengths, counted tokens, models and errors", async () => {
    const it = setup(place, { script: () => `one two STOP three${END}` });
    const anthropic = new Anthropic({ ...it.connection, baseURL: it.root });
    const common = { model: it.model, messages: [ASK] };
    const stopped = await anthropic.messages.create({ ...common, max_tokens: 99, stop_sequences: ["x", "STOP"] });
    expect(stopped).toMatchObject({
      stop_reason: "stop_sequence",
      stop_sequence: "STOP",
      content: [{ text: "one two " }],
    });
    const cut = await anthropic.messages.create({ ...common, max_tokens: 2 });
    expect(cut).toMatchObject({ stop_reason: "max_tokens", stop_sequence: null, usage: { output_tokens: 2 } });
    const counted = await anthropic.messages.countTokens(common);
    expect(counted.input_tokens).toBe(it.policy.steps[0]!.prompt_ids.length);
    expect((await anthropic.models.list()).data).toMatchObject([{ type: "model", id: it.model }]);
    const image = { type: "image" as const, source: { type: "url" as const, url: "http://x/y.png" } };
    const refused = anthropic.messages.create({
      ...common,
      max_tokens: 1,
      messages: [{ role: "user", content: [{ type: "text", text: "what is this" }, image] }],
    });
    await expect(refused).rejects.toMatchObject({
      status: 400,
      error: { type: "error", error: { type: "invalid_request_error" } },
      message: expect.stringContaining("only parts of type text"),
    });
    await expect(refused).rejects.toThrow(Anthropic.BadRequestError);
    const begun = anthropic.messages.create({
      ...common,
      max_tokens: 1,
      messages: [ASK, { role: "assistant", content: "it" }],
    });
    await expect(begun).rejects.toThrow(/the last one must be the user's/);
    await expect(anthropic.models.retrieve("x")).rejects.toThrow(Anthropic.NotFoundError);
  });
});

/** The AI SDK warns that it does not know the model. */
const quiet = globalThis as { AI_SDK_LOG_WARNINGS?: boolean };

describe.each(PLACES)("the AI SDK %s", (place) => {
  const providers = {
    "openai-compatible": ({ connection, model }: ReturnType<typeof setup>) =>
      createOpenAICompatible({ name: "grpu", ...connection })(model),
    anthropic: ({ connection, model }: ReturnType<typeof setup>) => createAnthropic(connection)(model),
  };
  test.each(Object.entries(providers))("%s: tool loops, whole and streamed", async (_, provide) => {
    const tools = { add: tool({ inputSchema: INPUT, execute: async (input) => add(input) }) };
    quiet.AI_SDK_LOG_WARNINGS = false;
    const options = { prompt: ASK.content, tools, stopWhen: stepCountIs(3) };
    const whole = setup(place);
    const model: LanguageModel = provide(whole);
    const { text, reasoningText } = await generateText({ ...options, model });
    expect([text, reasoningText]).toEqual(["it is 3, 日本 🙂", "got it"]);
    expectOneSequence(whole);
    const live = setup(place);
    const result = streamText({ ...options, model: provide(live) });
    const deltas: string[] = [];
    for await (const delta of result.textStream) deltas.push(delta);
    expect(deltas.join("")).toBe("let me seeit is 3, 日本 🙂");
    expect(deltas.length).toBeGreaterThan(4);
    expect(await result.finishReason).toBe("stop");
    expectOneSequence(live);
  });
});

describe.each(PLACES)("LangChain %s", (place) => {
  test.each([false, true])("a tool loop (responses: %s)", async (useResponsesApi) => {
    const it = setup(place);
    const { baseURL, fetch, apiKey } = it.connection;
    const model = new ChatOpenAI({
      model: it.model,
      apiKey,
      configuration: { baseURL, fetch },
      useResponsesApi,
      maxRetries: 0,
    });
    const sum = langchainTool(async (input) => add(input as z.infer<typeof INPUT>), { name: "add", schema: INPUT });
    const bound = model.bindTools([sum]);
    const first = await bound.invoke([ASK]);
    expect(first.tool_calls).toMatchObject([{ name: "add", args: { a: 1, b: 2 } }]);
    const result = await sum.invoke(first.tool_calls![0]!);
    const stream = await bound.stream([ASK, first, result]);
    const pieces: string[] = [];
    for await (const chunk of stream) if (chunk.text) pieces.push(chunk.text);
    expect(pieces.join("")).toBe("it is 3, 日本 🙂");
    expect(pieces.length).toBeGreaterThan(2);
    expectOneSequence(it);
  });
});

test("an MCP server's tools in a loop of openai", async () => {
  const mcp = new McpServer({ name: "sums", version: "1" });
  mcp.registerTool("add", { description: "Adds.", inputSchema: INPUT.shape }, async (input) => ({
    content: [{ type: "text", text: add(input) }],
  }));
  const [ours, theirs] = InMemoryTransport.createLinkedPair();
  const client = new Client({ name: "agent", version: "1" });
  await Promise.all([mcp.connect(theirs), client.connect(ours)]);
  const it = setup("over HTTP");
  const openai = new OpenAI(it.connection);
  const tools = (await client.listTools()).tools.map(({ name, description, inputSchema }) => ({
    type: "function" as const,
    function: { name, description: description ?? "", parameters: inputSchema },
  }));
  const messages: OpenAI.ChatCompletionMessageParam[] = [ASK];
  let answer: string | null = null;
  for (let turn = 0; turn < 3 && answer === null; turn++) {
    const reply = await openai.chat.completions.create({ model: it.model, messages, tools });
    const { message } = reply.choices[0]!;
    messages.push(message);
    if (!message.tool_calls) answer = message.content;
    for (const call of message.tool_calls ?? []) {
      if (call.type !== "function") continue;
      const result = await client.callTool({
        name: call.function.name,
        arguments: JSON.parse(call.function.arguments),
      });
      messages.push({
        role: "tool",
        tool_call_id: call.id,
        content: result.content as OpenAI.ChatCompletionContentPartText[],
      });
    }
  }
  expect(answer).toBe("it is 3, 日本 🙂");
  expectOneSequence(it);
  await Promise.all([client.close(), mcp.close()]);
});
