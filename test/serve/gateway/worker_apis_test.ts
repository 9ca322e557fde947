/** Every API of a session in front of workers leaves the tokens that were sampled; in cumulative token mode turns continue them. */
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterEach, describe, expect, test } from "vitest";
import { pushUpToEnd } from "../../../src/serve/gateway/workers/cumulative.ts";
import { openServedGateway } from "../../../src/train/run/serve/served_gateway.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import { type FakeVllm, fakeVllm, type TokenServer, tokenServer } from "../../fixtures/fake_vllm.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { call, closeGateways, openGateway } from "../../fixtures/gateway.ts";
import { writeChatModel } from "../../fixtures/served_models.ts";

const folder = temporaryFolder("worker-tokenizer");

const fakes: { close(): Promise<void> }[] = [];
afterEach(async () => {
  await closeGateways();
  await Promise.all(fakes.splice(0).map((each) => each.close()));
});

const ASK = [{ role: "user" as const, content: "in" }];

async function inFrontOf(worker: FakeVllm | TokenServer, options: Parameters<typeof openGateway>[0] = {}) {
  fakes.push(worker);
  const gateway = await openGateway({ engines: undefined, ...options });
  await call(`${gateway.url}/admin/workers`, { body: { url: worker.url } });
  const at = `${gateway.url}/sessions/s`;
  const openai = new OpenAI({ baseURL: `${at}/v1`, apiKey: "none", maxRetries: 0 });
  const anthropic = new Anthropic({ baseURL: at, apiKey: "none", maxRetries: 0 });
  return { ...gateway, at, openai, anthropic, traces: () => gateway.store.traces({ session_id: "s" }) };
}

describe("in front of a worker that renders", () => {
  const setup = async (options: Parameters<typeof fakeVllm>[0] = {}) => {
    const worker = await fakeVllm(options);
    return { worker, ...(await inFrontOf(worker)) };
  };
  const SAMPLED = { prompt_token_ids: [1, 2, 3], completion_token_ids: [10, 11, 12], logprobs: [-0.5, -0.25, -0.125] };

  test("Anthropic's messages are chat completions there, and their trace has the tokens", async () => {
    const { anthropic, worker, traces } = await setup();
    const message = await anthropic.messages.create({
      model: "m",
      max_tokens: 9,
      system: "Be brief.",
      messages: ASK,
      metadata: { user_id: "u" },
    });
    expect(message.content).toEqual([{ type: "text", text: "w0w1w2" }]);
    expect(message).toMatchObject({ stop_reason: "end_turn", usage: { input_tokens: 3, output_tokens: 3 } });
    expect(worker.paths).toEqual(["/v1/chat/completions"]);
    const messages = [{ role: "system", content: "Be brief." }, ...ASK];
    expect(worker.requests[0]).toMatchObject({
      model: "m",
      messages,
      max_tokens: 9,
      stream: true,
      return_token_ids: true,
    });
    expect(await traces()).toMatchObject([{ ...SAMPLED, model: "m", messages, metadata: { user_id: "u" } }]);
  });

  test("their stream comes in pieces; a client that leaves it leaves what it got", async () => {
    const { anthropic, worker, traces } = await setup();
    const texts: string[] = [];
    for await (const event of anthropic.messages.stream({ model: "m", max_tokens: 9, messages: ASK }))
      if (event.type === "content_block_delta" && event.delta.type === "text_delta") texts.push(event.delta.text);
    expect(texts).toEqual(["w0", "w1", "w2"]);
    worker.mode = "slow";
    const stream = anthropic.messages.stream({ model: "m", max_tokens: 9, messages: ASK });
    for await (const event of stream) if (event.type === "content_block_delta") break;
    stream.abort();
    await expect.poll(traces).toMatchObject([{ finish_reason: "stop", ...SAMPLED }, { finish_reason: "abort" }]);
    await expect.poll(() => worker.abandoned).toBe(1);
  });

  test("a response is recorded, and continued by its id", async () => {
    const { openai, worker, traces } = await setup();
    const first = await openai.responses.create({ model: "m", input: "in", max_output_tokens: 7 });
    expect([first.output_text, first.usage!.output_tokens]).toEqual(["w0w1w2", 3]);
    await openai.responses.create({ model: "m", input: "on", previous_response_id: first.id });
    const messages = [...ASK, { role: "assistant", content: "w0w1w2" }, { role: "user", content: "on" }];
    expect(worker.requests.map(({ messages: asked }) => asked)).toMatchObject([ASK, messages]);
    expect(worker.requests[0]).toMatchObject({ max_tokens: 7 });
    expect(await traces()).toMatchObject([SAMPLED, { prompt_origin: "diverged" }]);
    expect((await openai.responses.retrieve(first.id)).id).toBe(first.id);
    await openai.responses.delete(first.id);
    await expect(openai.responses.retrieve(first.id)).rejects.toMatchObject({ status: 404 });
    expect(worker.paths.every((path) => path === "/v1/chat/completions")).toBe(true);
  });

  test("a session's parameters overwrite, under the names of chat completions, and are recorded", async () => {
    const { url, openai, worker, traces } = await setup();
    const sampling_params = { max_tokens: 5, repetition_penalty: 1.1 };
    await call(`${url}/sessions`, { body: { session_id: "s", sampling_params } });
    await openai.responses.create({ model: "m", input: "in", max_output_tokens: 7 });
    expect(worker.requests[0]).toMatchObject(sampling_params);
    expect(await traces()).toMatchObject([{ raw_request: sampling_params }]);
  });

  test("tools go there and come back, and so does reasoning", async () => {
    const call = (index: number, id: string, given: string) => ({
      index,
      id,
      function: { name: "add", arguments: given },
    });
    const deltas = [
      { role: "assistant", reasoning_content: "so" },
      { content: "Let me see." },
      { tool_calls: [call(0, "c0", '{"a"')] },
      { tool_calls: [{ index: 0, function: { arguments: ":1}" } }] },
      { tool_calls: [call(1, "c1", "{}")] },
    ];
    const { anthropic, worker, traces } = await setup({ deltas, finishReason: "tool_calls" });
    const tools = [{ name: "add", input_schema: { type: "object" as const } }];
    const stream = anthropic.messages.stream({ model: "m", max_tokens: 9, messages: ASK, tools });
    const message = await stream.finalMessage();
    expect(message.content).toMatchObject([
      { type: "thinking", thinking: "so" },
      { type: "text", text: "Let me see." },
      { type: "tool_use", id: "c0", name: "add", input: { a: 1 } },
      { type: "tool_use", id: "c1", input: {} },
    ]);
    expect(message.stop_reason).toBe("tool_use");
    expect(worker.requests[0]!.tools).toMatchObject([{ type: "function", function: { name: "add" } }]);
    const [trace] = await traces();
    expect(trace).toMatchObject({ finish_reason: "tool_calls", response_message: { reasoning_content: "so" } });
    expect(trace!.response_message.tool_calls).toMatchObject([{ id: "c0" }, { id: "c1" }]);
  });

  test("the worker's error comes in the form of the API", async () => {
    const { at, worker, traces } = await setup();
    worker.mode = "error";
    const body = { model: "m", max_tokens: 4, messages: ASK };
    expect(await call(`${at}/v1/messages`, { body })).toMatchObject({
      status: 500,
      body: { type: "error", error: { type: "api_error", message: "no memory" } },
    });
    worker.mode = "cut";
    const cut = await call(`${at}/v1/messages`, { body: { ...body, stream: true } });
    expect(cut.body).toMatch(/event: error\ndata: .*broke off/);
    expect(await traces()).toMatchObject([{ finish_reason: "error", completion_token_ids: [10, 11] }]);
  });

  test("without a session the APIs are the worker's own", async () => {
    const { url, worker } = await setup();
    await call(`${url}/v1/messages`, { body: { model: "m", max_tokens: 4, messages: ASK } });
    expect(worker.paths).toEqual(["/v1/messages"]);
  });
});

describe("the session of a worker that has sessions, such as a run", () => {
  test("is named by the parameters that an administrator gave, never by an agent", async () => {
    const worker = await fakeVllm();
    const auth = { apiKeys: ["agent"], adminToken: "admin" };
    fakes.push(worker);
    const { url } = await openGateway({ engines: undefined, auth });
    await call(`${url}/admin/workers`, { body: { url: worker.url }, key: "admin" });
    const other = { rllm_metadata: { session_id: "other" } };
    const create = (key: string) =>
      call(`${url}/sessions`, { body: { session_id: "mine", sampling_params: other }, key });
    expect((await create("agent")).status).toBe(403);
    const asked = { model: "m", messages: ASK, ...other, metadata: { session_id: "other", role: "judge" } };
    await call(`${url}/sessions/s/v1/chat/completions`, { body: asked, key: "agent" });
    expect(JSON.stringify(worker.requests[0])).not.toContain("other");
    expect(worker.requests[0]).toMatchObject({ metadata: { role: "judge" } });
    expect((await create("admin")).status).toBe(200);
    await call(`${url}/sessions/mine/v1/chat/completions`, { body: { model: "m", messages: ASK }, key: "agent" });
    expect(worker.requests[1]).toMatchObject(other);
  });
});

describe("cumulative token mode", () => {
  const tokenizer = chatTokenizer(CHATML);
  const ids = (text: string) => tokenizer.encode(text, { addSpecialTokens: false });
  const END = "<|im_end|>";
  // Tokens that the text of the reply would not be encoded to again.
  const drifting = [...ids("the"), ...[..."and"].flatMap((letter) => ids(letter)), ...ids(END)];
  const setup = async (
    reply: Parameters<typeof tokenServer>[0] = () => drifting,
    more: Parameters<typeof tokenServer>[1] = {},
  ) => {
    const worker = await tokenServer(reply, more);
    return { worker, ...(await inFrontOf(worker, { workers: { tokenizer } })) };
  };

  test("a later turn starts with the tokens of the one before, whatever they decode to", async () => {
    const { openai, worker, traces } = await setup();
    const messages: OpenAI.ChatCompletionMessageParam[] = [...ASK];
    for (let turn = 0; turn < 3; turn++) {
      const { choices } = await openai.chat.completions.create({ model: "m", messages, max_tokens: 9 });
      messages.push(choices[0]!.message, { role: "user", content: "on" });
    }
    expect(ids(tokenizer.decode(drifting.slice(0, -1)))).not.toEqual(drifting.slice(0, -1));
    const all = await traces();
    expect(all.map(({ prompt_origin }) => prompt_origin)).toEqual(["rendered", "continued", "continued"]);
    for (const [i, trace] of all.entries()) {
      expect(trace.completion_token_ids).toEqual(drifting);
      expect(trace.logprobs).toEqual(drifting.map((_, k) => -0.25 * (k + 1)));
      expect(worker.requests[i]!.prompt).toEqual(trace.prompt_token_ids);
      const before = all[i - 1];
      if (!before) continue;
      const start = [...before.prompt_token_ids, ...before.completion_token_ids];
      expect(trace.prompt_token_ids.slice(0, start.length)).toEqual(start);
      expect(trace.parent_trace_id).toBe(before.trace_id);
    }
    expect(worker.requests[0]).toMatchObject({ path: "/v1/completions", model: "m", max_tokens: 9, logprobs: 1 });
    // What the request leaves open is the worker's to choose, and known to nobody here.
    expect(worker.requests[0]).not.toHaveProperty("temperature");
    expect(all[0]).toMatchObject({ weight_version: null, raw_request: { max_tokens: 9 } });
    expect(all[0]).not.toHaveProperty("sampling_params");
  });

  test("an edited history is rendered again, and counted", async () => {
    const { openai, traces } = await setup();
    await openai.chat.completions.create({ model: "m", messages: ASK });
    const messages = [
      ...ASK,
      { role: "assistant" as const, content: "edited" },
      { role: "user" as const, content: "on" },
    ];
    await openai.chat.completions.create({ model: "m", messages });
    expect((await traces()).map(({ prompt_origin }) => prompt_origin)).toEqual(["rendered", "diverged"]);
  });

  test("every API shares the session's tokens, streams and not; counting needs no worker", async () => {
    const { openai, anthropic, traces, worker } = await setup();
    const stream = await openai.chat.completions.create({ model: "m", messages: ASK, stream: true });
    let text = "";
    for await (const { choices } of stream) text += choices[0]?.delta.content ?? "";
    const messages = [...ASK, { role: "assistant" as const, content: text }, { role: "user" as const, content: "on" }];
    const { content } = await anthropic.messages.create({ model: "m", max_tokens: 9, messages });
    expect(content).toMatchObject([{ type: "text", text }]);
    const next = { role: "user" as const, content: "more" };
    await openai.responses.create({ model: "m", input: [...messages, { role: "assistant", content: text }, next] });
    expect((await traces()).map(({ prompt_origin }) => prompt_origin)).toEqual(["rendered", "continued", "continued"]);
    const { input_tokens } = await anthropic.messages.countTokens({ model: "m", messages: ASK });
    expect(input_tokens).toBe((await traces())[0]!.prompt_token_ids.length);
    expect(worker.requests).toHaveLength(3);
  });

  test("a gateway that is opened again continues from the store", async () => {
    const first = await setup();
    const { choices } = await first.openai.chat.completions.create({ model: "m", messages: ASK });
    const store = first.store;
    const second = await inFrontOf(first.worker, { workers: { tokenizer }, store });
    const messages = [...ASK, choices[0]!.message, { role: "user" as const, content: "on" }];
    await second.openai.chat.completions.create({ model: "m", messages });
    expect((await store.traces({ session_id: "s" })).at(-1)).toMatchObject({ prompt_origin: "continued" });
  });

  test("a run behind the gateway gets the conversation, because it continues tokens itself", async () => {
    const { url, at, worker } = await setup();
    const sampling_params = { rllm_metadata: { session_id: "s" } };
    await call(`${url}/sessions`, { body: { session_id: "s", sampling_params } });
    await call(`${at}/v1/chat/completions`, { body: { model: "m", messages: ASK } });
    expect(worker.requests[0]).toMatchObject({ path: "/v1/chat/completions", messages: ASK, ...sampling_params });
  });

  test("a stop string ends the worker's stream at its token", async () => {
    const tokens = [...ids("the"), ...ids("and"), ...Array.from({ length: 500 }, () => ids("on")[0]!)];
    const { openai, traces } = await setup(() => tokens);
    const { choices } = await openai.chat.completions.create({ model: "m", messages: ASK, stop: ["and"] });
    expect(choices[0]).toMatchObject({ finish_reason: "stop", message: { content: "the" } });
    expect((await traces())[0]!.completion_token_ids).toEqual([...ids("the"), ...ids("and")]);
  });

  test("an event of a stream costs its own tokens, however many came before", () => {
    const before = 10_000;
    let reads = 0;
    const tokens = new Proxy(
      Array.from({ length: before }, () => 1),
      {
        get: (array, key, receiver) => {
          reads++;
          return Reflect.get(array, key, receiver);
        },
      },
    );
    expect(pushUpToEnd(tokens, { newTokens: [2, 3, 4], ends: (all) => all[all.length - 1] === 3 })).toBe(true);
    expect(reads).toBeLessThan(100);
    expect(tokens.slice(before)).toEqual([2, 3]);
    expect(pushUpToEnd(tokens, { newTokens: [5], ends: undefined })).toBe(false);
    expect(tokens.length).toBe(before + 3);
  });

  test("n choices have seeds of their own; a client that leaves keeps those that ended whole", async () => {
    const endless = Array.from({ length: 5000 }, () => ids("on")[0]!);
    const { openai, worker, traces } = await setup((_, { seed }) => (seed === 4 ? drifting : endless));
    const asked = { model: "m", messages: ASK, n: 2, seed: 4 };
    const stream = await openai.chat.completions.create({ ...asked, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 30) break;
    await expect.poll(traces).toHaveLength(2);
    const found = (await traces()).map(({ finish_reason, completion_token_ids }) => [
      finish_reason,
      completion_token_ids,
    ]);
    expect(found[0]).toEqual(["stop", drifting]);
    expect(found[1]![0]).toBe("abort");
    expect(worker.requests.map(({ seed }) => seed)).toEqual([4, 5]);
  });

  test("of grpu serve gateway takes the folder of the workers' model, and names one that cannot do", async () => {
    const open = (template?: string) => openServedGateway({ workerTokenizer: { folder, template }, store: "memory" });
    await expect(open()).rejects.toThrow(/the folder has no tokenizer\.json/);
    await writeChatModel(folder);
    const served = await open("plain");
    await served.close();
  });

  test.each<[string, Parameters<typeof tokenServer>[1], object, RegExp]>([
    ["no token ids", { hidesTokens: true }, {}, /reports 0 token ids/],
    ["another prompt", { promptIds: [1] }, {}, /changed the prompt/],
    ["a grammar", {}, { response_format: { type: "json_object" } }, /response_format/],
  ])("%s is an error, not a row", async (_, more, asked, message) => {
    const { at, traces } = await setup(undefined, more);
    const body = { model: "m", messages: ASK, ...asked };
    const answer = await call(`${at}/v1/chat/completions`, { body });
    expect([400, 502]).toContain(answer.status);
    expect(JSON.stringify(answer.body)).toMatch(message);
    expect(await traces()).toEqual([]);
  });
});
