/** Numbers and keys of JSON through every door: a model's reply, its history, tools, traces and their files. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import * as fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { parseJson, stringifyJson } from "../../../src/leaves/json.ts";
import { exportItems, importItems } from "../../../src/train/trace/files/item.ts";
import { itemLine, readTraceJsonl } from "../../../src/train/trace/files/jsonl.ts";
import { readTraceParquet, writeParquet } from "../../../src/train/trace/files/parquet.ts";
import { MemoryTraceStore } from "../../../src/train/trace/mod.ts";
import { readSpans, writeSpans } from "../../../src/train/trace/otel/spans.ts";
import { SqliteTraceStore } from "../../../src/train/trace/sqlite/sqlite_store.ts";
import { closeGateways, END, openGateway } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const ARGUMENTS = '{"id":1234567890123456789,"x":1.0,"e":1e3,"b":{"z":-0,"10":2,"2":[18446744073709551615,0.10]}}';
/** As chat templates write it. */
const spaced = (text: string) => text.replaceAll(",", ", ").replaceAll(":", ": ");
const reply = (text: string) => `<tool_call>\n{"name": "f", "arguments": ${text}}\n</tool_call>${END}`;
const parameters = `{"type":"object","properties":{"b":{"const":9007199254740993},"10":{"maximum":1.0},"2":{"default":1e3}}}`;

async function post(url: string, text: string, headers: Record<string, string> = {}) {
  const init = { method: "POST", headers: { "content-type": "application/json", ...headers }, body: text };
  const response = await fetch(url, init);
  return { status: response.status, text: await response.text(), headers: response.headers };
}

const quoted = JSON.stringify(ARGUMENTS);
const TOOL = `{"type":"function","function":{"name":"f","parameters":${parameters}}}`;
const CALL = `{"id":"c","type":"function","function":{"name":"f","arguments":${quoted}}}`;
const RESULT = '{"role":"tool","tool_call_id":"c","content":"ok"}';
const CHAT = `"model":"scripted","messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[${CALL}]},${RESULT}],"tools":[${TOOL}]`;
const RESPONSES = `"model":"scripted","input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":${quoted}},{"type":"function_call_output","call_id":"c","output":"ok"}],"tools":[{"type":"function","name":"f","parameters":${parameters}}]`;
const MESSAGES = `"model":"scripted","max_tokens":300,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":${ARGUMENTS}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"ok"}]}],"tools":[{"name":"f","input_schema":${parameters}}]`;

describe.each([
  ["chat/completions", CHAT, quoted],
  ["responses", RESPONSES, quoted],
  ["messages", MESSAGES, ARGUMENTS],
])("/v1/%s", (path, fields, shown) => {
  test.each([false, true])("keeps numbers and keys of calls, tools and replies (stream: %s)", async (stream) => {
    const prompts: string[] = [];
    const script = (prompt: string) => {
      prompts.push(prompt);
      return reply(ARGUMENTS);
    };
    const { url, store } = await openGateway({ script });
    const answer = await post(
      `${url}/sessions/s/v1/${path}`,
      `{${fields},"stream":${stream},"metadata":{"b":1.0,"10":9007199254740993,"2":1e3}}`,
    );
    expect([answer.status, answer.text]).toEqual([200, expect.stringContaining(stream ? quoted : shown)]);
    // Python reads -0 as 0.
    expect(prompts[0]).toContain(`"arguments": ${spaced(ARGUMENTS).replace('"z": -0', '"z": 0')}`);
    expect(prompts[0]).toContain(spaced(parameters));
    const [trace] = await store.traces({ session_id: "s" });
    const written = stringifyJson(trace);
    for (const text of [ARGUMENTS, parameters, '"b":1.0,"10":9007199254740993,"2":1e3'])
      expect(written).toContain(text);
    const shownTrace = await (await fetch(`${url}/sessions/s/traces`)).text();
    expect(shownTrace).toContain(`"arguments":${ARGUMENTS}`);
  });
});

test("a chat template's variables, and a schema in response_format, are recorded as they were sent", async () => {
  const { url, store } = await openGateway({});
  const schema = '{"const":1234567890123456789}';
  const body = `{"model":"scripted","messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"x":1.0},"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":${schema}}}}`;
  await post(`${url}/sessions/s/v1/chat/completions`, body);
  const written = stringifyJson((await store.traces({ session_id: "s" }))[0]);
  expect(written).toContain(`"schema":${schema}`);
  expect(written).toContain('"chat_template_kwargs":{"x":1.0}');
});

test("a reply that is sent back is known by its arguments, and one with another number is not", async () => {
  const { url, store } = await openGateway({ script: () => reply('{"id":1234567890123456789}') });
  const ask = async (id: string, session: string) => {
    const user = '{"role":"user","content":"hi"}';
    const call = (text: string) =>
      `{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":${JSON.stringify(text)}}}]}`;
    const send = (messages: string) =>
      post(
        `${url}/sessions/${session}/v1/chat/completions`,
        `{"model":"scripted","messages":[${messages}],"tools":[${TOOL}]}`,
      );
    await send(user);
    await send([user, call(`{"id": ${id}}`), RESULT].join(","));
    return (await store.traces({ session_id: session })).at(-1)!.prompt_origin;
  };
  expect(await ask("1234567890123456789", "same")).toBe("continued");
  expect(await ask("1234567890123456788", "other")).toBe("diverged");
});

test("a worker gets and sends numbers as they are", async () => {
  const bodies: string[] = [];
  const answered = `{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"x","extra":${ARGUMENTS}}}]}`;
  const server = createServer((request, response) => {
    let text = "";
    request.on("data", (chunk) => (text += chunk));
    request.on("end", () => {
      bodies.push(text);
      const isStream = text.includes('"stream":true');
      response.setHeader("content-type", isStream ? "text/event-stream" : "application/json");
      response.end(isStream ? `data: ${answered}\n\ndata: [DONE]\n\n` : answered);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const worker = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  const { url } = await openGateway({ engines: undefined });
  await post(`${url}/admin/workers`, JSON.stringify({ url: worker }));
  for (const stream of [false, true]) {
    const answer = await post(`${url}/sessions/s/v1/chat/completions`, `{${CHAT},"stream":${stream}}`);
    expect(answer.text).toContain(`"extra":${ARGUMENTS}`);
  }
  const calls = bodies.filter((body) => body.includes("messages"));
  expect(calls).toHaveLength(2);
  for (const body of calls) expect(body).toContain(parameters);
  server.closeAllConnections();
  server.close();
});

describe("a trace", () => {
  const NUMBER = fc.oneof(
    fc.bigInt({ min: -(2n ** 70n), max: 2n ** 70n }).map(String),
    fc.constantFrom("1.0", "1e3", "-0", "0.10", "9007199254740993", "1E-9"),
  );
  const JSON_TEXT = fc
    .uniqueArray(fc.tuple(fc.oneof(fc.nat(99).map(String), fc.constantFrom("b", "id")), NUMBER), {
      selector: ([key]) => key,
    })
    .map((members) => `{${members.map(([key, value]) => `"${key}":${value}`).join(",")}}`);

  const traceWith = (text: string) =>
    parseJson(
      `{"trace_id":"t","session_id":"s","model":"m","messages":[{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":${text}}}]}],"prompt_token_ids":[1],"response_message":{"role":"assistant","n":${text}},"completion_token_ids":[2],"logprobs":[-0.5],"finish_reason":"stop","weight_version":1,"latency_ms":1,"token_counts":{"prompt":1,"completion":1},"timestamp":5,"metadata":${text},"raw_request":{"x":${text}},"raw_response":null,"tools":[{"p":${text}}],"parent_trace_id":null,"timings":{}}`,
    ) as Parameters<MemoryTraceStore["putTrace"]>[0];

  test("keeps its numbers and keys in every store and file", async () => {
    await fc.assert(
      fc.asyncProperty(JSON_TEXT, async (text) => {
        const trace = traceWith(text);
        const stores = [new MemoryTraceStore(), await SqliteTraceStore.open(":memory:")];
        for (const store of stores) await store.putTrace(trace);
        const items = () => exportItems(stores[0]!);
        const lines: string[] = [];
        for await (const item of items()) lines.push(itemLine(item));
        const parquet = await writeParquet(items());
        const parquetItems = readTraceParquet(parquet.buffer as ArrayBuffer, "t.parquet");
        for (const read of [readTraceJsonl(lines.join(""), "t.jsonl"), parquetItems]) {
          const store = new MemoryTraceStore();
          await importItems(store, read);
          stores.push(store);
        }
        for (const [i, store] of stores.entries()) {
          const read = (await store.getTrace("t"))!;
          const parts = [read.metadata, read.raw_request, read.tools, read.response_message, read.messages].map(
            (each) => stringifyJson(each),
          );
          for (const part of parts) expect([i, part]).toEqual([i, expect.stringContaining(text)]);
        }
        await stores[1]!.close?.();
      }),
      { numRuns: 25 },
    );
  });

  test("keeps them as spans of OpenTelemetry", async () => {
    const store = new MemoryTraceStore();
    await store.putTrace(traceWith('{"id":9007199254740993,"x":1.0}'));
    let text = "";
    for await (const line of writeSpans(exportItems(store))) text += line;
    const [item] = [...readSpans(parseJson(text), { file: "t.otlp" })];
    const { trace } = item as { trace: { metadata: object; tools: object } };
    expect(stringifyJson(trace.metadata)).toBe('{"id":9007199254740993,"x":1.0}');
    expect(stringifyJson(trace.tools)).toContain('{"id":9007199254740993,"x":1.0}');
  });
});

describe("a request's id", () => {
  const HELLO = '{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":9';
  test.each([
    ["chat/completions", `${HELLO}}`, {}, 200, "x-request-id"],
    ["chat/completions", `${HELLO},"stream":true}`, {}, 200, "x-request-id"],
    ["chat/completions", "{}", {}, 400, "x-request-id"],
    ["completions", '{"model":"scripted","prompt":"a"}', {}, 200, "x-request-id"],
    ["responses", '{"model":"scripted","input":"hi"}', {}, 200, "x-request-id"],
    ["nothing", "{}", {}, 404, "x-request-id"],
    ["chat/completions", `${HELLO}}`, { origin: "https://other.example" }, 403, "x-request-id"],
    ["messages", `${HELLO}}`, {}, 200, "request-id"],
    ["messages", `${HELLO},"stream":true}`, {}, 200, "request-id"],
    ["messages", "{}", {}, 400, "request-id"],
    ["messages/count_tokens", `${HELLO.replace(',"max_tokens":9', "")}}`, {}, 200, "request-id"],
  ])("is on the answer of %s %s %j (%i)", async (path, body, headers, status, name) => {
    const { url } = await openGateway({});
    const answer = await post(`${url}/v1/${path}`, body, headers);
    expect([answer.status, answer.headers.get(name)]).toEqual([status, expect.stringMatching(/^req_[\da-f]{32}$/)]);
  });
});

test("a message whose role nobody knows is an error that names it", async () => {
  const { url } = await openGateway({});
  const ask = (path: string, fields: string) => post(`${url}/v1/${path}`, `{"model":"scripted",${fields}}`);
  const alien = '[{"role":"alien","content":"hi"}]';
  for (const [path, fields] of [
    ["chat/completions", `"messages":${alien}`],
    ["responses", `"input":${alien}`],
    ["messages", `"max_tokens":3,"messages":${alien}`],
  ] as const) {
    const { status, text } = await ask(path, fields);
    expect([path, status, text]).toEqual([path, 400, expect.stringContaining("alien")]);
  }
});

test("a body that is not UTF-8 is refused", async () => {
  const { url } = await openGateway({});
  const body = Buffer.concat([
    Buffer.from('{"model":"scripted","messages":[{"role":"user","content":"'),
    Buffer.from([0xe9]),
    Buffer.from('"}]}'),
  ]);
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body });
  expect([response.status, await response.text()]).toEqual([400, expect.stringContaining("it is not UTF-8")]);
});
