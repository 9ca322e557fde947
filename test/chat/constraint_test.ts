/** Forms of replies through the APIs, by a model of random weights: only the masks give its replies a form. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { demandsOf } from "../../src/chat/constraint.ts";
import { reasoningAt } from "../../src/chat/reply_reader.ts";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import type { Backend } from "../../src/engine/contract/backend.ts";
import { byteTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { createPolicy } from "../../src/train/loop/rollout/agent.ts";
import { DrawQueue } from "../../src/train/loop/rollout/draw_queue.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";
import { scriptedPolicy } from "../fixtures/scripted.ts";
import { SMALL_MODEL } from "../fixtures/small_model.ts";

const device = new CpuDevice();
const { vocabSize, eosTokenIds } = chatTokenizer();
const CONFIG = { ...SMALL_MODEL, vocabSize, eosTokenIds: [...eosTokenIds], contextLength: 2000 };
const model = LanguageModel.create(device, CONFIG, { seed: 3 });

function setup(template = CHATML) {
  const tokenizer = chatTokenizer(template);
  const backend = {
    name: "random",
    tokenizer,
    isConstrainable: true,
    weightVersion: 0,
    model: { name: "random", vocabSize, contextLength: 2000, eosTokenIds, parameters: 0, trainableParameters: 0 },
    sample: (requests: Parameters<Backend["sample"]>[0]) => model.sample(requests, { weightVersion: 0 }),
  } as unknown as Backend;
  const signal = new AbortController().signal;
  const place = { rollout_index: 0, step: 0, is_validation: false };
  const { policy } = createPolicy({
    ...scriptedPolicy({ tokenizer, script: () => "" }),
    place: place as never,
    draws: new DrawQueue(backend, signal),
    backend,
    maxPromptLength: 1500,
    isValidation: false,
    signal,
    seed: 1,
    rank: 0,
    params: { max_tokens: 300, temperature: 0.3, top_p: 1, top_k: -1, stop_token_ids: eosTokenIds },
  });
  const openai = new OpenAI({ apiKey: "-", baseURL: policy.baseURL, fetch: policy.fetch as typeof globalThis.fetch });
  const create = (body: object) =>
    openai.chat.completions.create({
      model: "m",
      messages: [{ role: "user", content: "go" }],
      ...body,
    } as never) as Promise<OpenAI.ChatCompletion>;
  return { policy, openai, create, tokenizer };
}

const POINT = z.object({ x: z.number().int().min(0).max(99), kind: z.enum(["in", "out"]) });
const JSON_SCHEMA = {
  type: "json_schema",
  json_schema: { name: "point", schema: z.toJSONSchema(POINT), strict: true },
};
const tool = (name: string, parameters: object) => ({ type: "function", function: { name, parameters } });
const TOOLS = [tool("move", z.toJSONSchema(POINT)), tool("stop", { type: "object", properties: {} })];

test("response_format: json_schema, streamed too, and json_object begins an object", async () => {
  const { create, openai } = setup();
  const { message, finish_reason } = (await create({ response_format: JSON_SCHEMA })).choices[0]!;
  expect(finish_reason).toBe("stop");
  POINT.strict().parse(JSON.parse(message.content!));
  const stream = openai.chat.completions.stream({
    model: "m",
    messages: [{ role: "user", content: "go on" }],
    response_format: JSON_SCHEMA as never,
  });
  POINT.strict().parse(JSON.parse((await stream.finalChatCompletion()).choices[0]!.message.content!));
  const object = (await create({ response_format: { type: "json_object" }, max_tokens: 20 })).choices[0]!;
  expect(object.message.content).toMatch(/^\{/);
  if (object.finish_reason === "stop") expect(typeof JSON.parse(object.message.content!)).toBe("object");
});

describe.each([
  ["hermes", CHATML],
  ["llama3", HEADERS],
])("tool_choice, %s", (_, template) => {
  test("required calls a tool, with arguments of its schema; a named one is called once", async () => {
    const { create, policy } = setup(template);
    const one = { tools: TOOLS, parallel_tool_calls: false };
    const required = (await create({ ...one, tool_choice: "required" })).choices[0]!;
    expect(required.finish_reason).toBe("tool_calls");
    const named = (await create({ ...one, tool_choice: { type: "function", function: { name: "move" } } })).choices[0]!;
    for (const { message } of [required, named]) {
      expect([message.content, message.tool_calls?.length]).toEqual([null, 1]);
      const call = message.tool_calls![0] as OpenAI.ChatCompletionMessageFunctionToolCall;
      const args: unknown = JSON.parse(call.function.arguments);
      if (call.function.name === "move") POINT.strict().parse(args);
      else expect(args).toEqual({});
    }
    expect((named.message.tool_calls![0] as OpenAI.ChatCompletionMessageFunctionToolCall).function.name).toBe("move");
    // What was drawn, not what was allowed, is recorded.
    expect(policy.steps.every(({ logprobs }) => logprobs.every((value) => value < 0))).toBe(true);
  });
});

test("a model that may reason does so before its answer takes its form", async () => {
  const { create, policy, tokenizer } = setup(THINKING);
  const { message } = (await create({ response_format: JSON_SCHEMA, chat_template_kwargs: { enable_thinking: false } }))
    .choices[0]! as never as { message: { content: string; reasoning_content?: string } };
  expect(message.reasoning_content).toBeUndefined();
  POINT.strict().parse(JSON.parse(message.content));
  await create({ response_format: JSON_SCHEMA, max_tokens: 60 });
  const text = tokenizer.decode(policy.steps[1]!.response_ids);
  expect(text).toMatch(/^(<think>|\{)/);
  expect([
    reasoningAt("a<think>\n", THINKING),
    reasoningAt("a<think>\n\n</think>\n\n", THINKING),
    reasoningAt("a", THINKING),
    reasoningAt("a", CHATML),
  ]).toEqual(["open", "none", "possible", "none"]);
});

test("top_logprobs through chat and text", async () => {
  const { create, openai } = setup();
  const { logprobs } = (await create({ logprobs: true, top_logprobs: 3, max_tokens: 4 })).choices[0]!;
  expect(logprobs?.content?.map((each) => each.top_logprobs.length)).toEqual([3, 3, 3, 3]);
  const text = await openai.completions.create({ model: "m", prompt: "go", logprobs: 2, max_tokens: 3, stream: true });
  const tops: number[] = [];
  for await (const { choices } of text)
    for (const top of choices[0]?.logprobs?.top_logprobs ?? []) tops.push(Object.keys(top).length);
  expect(tops).toEqual([2, 2, 2]);
});

test("what the sampler or the vocabulary cannot do is refused", async () => {
  const { policy } = scriptedPolicy({ tokenizer: chatTokenizer(CHATML), script: () => "x" });
  const openai = new OpenAI({ apiKey: "-", baseURL: policy.baseURL, fetch: policy.fetch as typeof globalThis.fetch });
  const asked = (body: object) =>
    openai.chat.completions.create({ model: "m", messages: [{ role: "user", content: "go" }], ...body } as never);
  await expect(asked({ tools: TOOLS, tool_choice: "required" })).rejects.toMatchObject({
    status: 400,
    param: "tool_choice",
  });
  await expect(asked({ logprobs: true, top_logprobs: 1 })).rejects.toMatchObject({
    status: 400,
    param: "top_logprobs",
  });
  const { create } = setup();
  const schema = { type: "object", properties: { a: { type: "array", uniqueItems: true } } };
  const bad = create({ response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
  await expect(bad).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining("schema.properties.a.uniqueItems"),
  });
  const request = {
    params: {},
    stop: [],
    n: 1,
    logprobs: false,
    stream: false,
    includeUsage: false,
    returnTokenIds: false,
  };
  const { tokenBytes: _, ...silent } = byteTokenizer();
  const options = { tokenizer: silent, isConstrainable: true };
  expect(() => demandsOf({ ...request, responseFormat: { type: "json_object" } }, options)).toThrow(
    /no bytes of their own/,
  );
});
