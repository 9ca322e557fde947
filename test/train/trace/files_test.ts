/** Traces in files: what goes out comes back equal, damage is named, foreign spans are kept and not trainable. */
import { describe, expect, test } from "vitest";
import type { SessionRecord, TraceRecord } from "../../../src/engine/contract/trace.ts";
import { exportItems, importItems, type TraceItem } from "../../../src/train/trace/files/item.ts";
import { itemLine, readTraceJsonl } from "../../../src/train/trace/files/jsonl.ts";
import { readTraceParquet, writeParquet } from "../../../src/train/trace/files/parquet.ts";
import { type OpenTraceStore, openTraceStore } from "../../../src/train/trace/mod.ts";
import { readSpans, writeSpans } from "../../../src/train/trace/otel/spans.ts";
import { makeTrace } from "./make_trace.ts";

const SESSIONS: readonly SessionRecord[] = [
  { session_id: "empty", metadata: {}, created_at: 1 },
  {
    ...{ session_id: "s", metadata: { task_id: "ü", step: 2 }, created_at: 2, sampling_params: { temperature: 0.5 } },
    outcome: {
      ...{ reward: 0.25, is_correct: false, trajectory_rewards: { judge: 1 }, ended_at: 9.5 },
      trajectories: [
        {
          ...{ name: "judge", label: "judge", reward: null, signals: { s: 1 } },
          calls: [{ trace_id: "1", reward: 1, advantage: [0.5] }],
        },
      ],
    },
  },
];

const CALL = { id: "c1", type: "function", function: { name: "add", arguments: '{"a":1}' } };
const TRACES: readonly TraceRecord[] = [
  makeTrace({
    ...{ trace_id: "1", session_id: "s", weight_version: 3, timestamp: 1700000000.123456 },
    ...{ prompt_token_ids: [0, 2 ** 32 - 1], completion_token_ids: [7], logprobs: [-1 / 3] },
    metadata: { name: "solver", nested: { list: [1, null] } },
    prompt_origin: "rendered",
    parent_trace_id: null,
    tools: [{ type: "function", function: { name: "add" } }],
    response_message: { role: "assistant", content: "", tool_calls: [CALL] },
    timings: { queue_ms: 1.5 },
    sampling_params: { temperature: 0.5, top_p: 1, top_k: -1, max_tokens: 8, stop_token_ids: [0] },
  }),
  makeTrace({
    ...{ trace_id: "2", session_id: "s", logprobs: null, finish_reason: null, weight_version: null },
    messages: [
      { role: "user", content: "1 + 1?" },
      { role: "assistant", content: "", tool_calls: [CALL] },
      { role: "tool", tool_call_id: "c1", content: "2" },
    ],
    response_message: { role: "assistant", content: "It is 2.", reasoning_content: "easy" },
  }),
  makeTrace({ trace_id: "3", session_id: "unannounced", logprobs: [], completion_token_ids: [] }),
];

async function filled(): Promise<OpenTraceStore> {
  let at = 100;
  const store = await openTraceStore("memory", { now: () => at++ });
  for (const session of SESSIONS) await store.putSession(session);
  for (const trace of TRACES) await store.putTrace(trace);
  return store;
}

/** Everything that a store holds, apart from the times of insertion. */
async function contents(store: OpenTraceStore) {
  const sessions = (await store.sessions({})).map(({ first_at, last_at, ...session }) => session);
  const byId = sessions.toSorted((a, b) => (a.session_id < b.session_id ? -1 : 1));
  return { sessions: byId, traces: (await store.traces({})).toSorted((a, b) => (a.trace_id < b.trace_id ? -1 : 1)) };
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

const bufferOf = (bytes: Uint8Array) => bytes.buffer.slice(0, bytes.byteLength) as ArrayBuffer;
const FORMATS: Readonly<Record<string, (items: AsyncIterable<TraceItem>) => Promise<readonly TraceItem[]>>> = {
  jsonl: async (items) => [...readTraceJsonl((await collect(items)).map(itemLine).join(""), "a.jsonl")],
  parquet: async (items) => collect(readTraceParquet(bufferOf(await writeParquet(items)), "a.parquet")),
  otlp: async (items) =>
    (await collect(writeSpans(items))).flatMap((line) => [...readSpans(JSON.parse(line), { file: "a.otlp" })]),
};

test.each(Object.entries(FORMATS))("%s out and in again is the same", async (name, transport) => {
  const store = await filled();
  const again = await openTraceStore("memory", { now: () => 102 });
  const items = await transport(exportItems(store));
  const counts = await importItems(again, items);
  const [before, after] = [await contents(store), await contents(again)];
  // Spans know no session without calls.
  const sessions = before.sessions.filter(({ session_id }) => name !== "otlp" || session_id !== "empty");
  expect(after).toEqual({ ...before, sessions });
  expect(counts).toEqual({ sessions: name === "otlp" ? 1 : 2, traces: 3, untrainable: 1 });
  await importItems(again, items);
  expect(await contents(again)).toEqual(after);
});

test("a trace that two sessions share is in both after an import, and a session announced with its first trace keeps its metadata", async () => {
  const store = await openTraceStore("memory", { now: () => 7 });
  for (const session_id of ["s", "t"]) await store.putTrace(makeTrace({ trace_id: "shared", session_id }));
  await store.putSession({ session_id: "s", metadata: { task_id: 1 }, created_at: 7 });
  const again = await openTraceStore("memory", { now: () => 7 });
  await importItems(again, exportItems(store));
  expect(await again.sessions({})).toEqual(await store.sessions({}));
});

test("sessions are exported by id, and only those", async () => {
  const store = await filled();
  const items = await collect(exportItems(store, { session_ids: ["unannounced"] }));
  expect(items).toEqual([{ trace: TRACES[2] }]);
  await expect(collect(exportItems(store, { session_ids: ["none"] }))).rejects.toThrow(
    /^Cannot export the session none: it is not in the store\./,
  );
});

test.each([
  ["no JSON", '{"trace_id": "a", ', /^Cannot read traces: the text is not JSON .*\(a\.jsonl:2\)\.$/],
  [
    "a wrong type",
    '{"trace_id": "a", "session_id": "s", "logprobs": ["x"]}',
    /^Cannot read the trace a: logprobs\.0: /,
  ],
  ["a negative id", '{"trace_id": "a", "session_id": "s", "prompt_token_ids": [-1]}', /trace a: prompt_token_ids\.0: /],
  ["no session", '{"metadata": {}}', /^Cannot read the session: session_id: .*\(a\.jsonl:2\)\.$/],
  ["a list", "[]", /^Cannot read the session: /],
])("a line with %s is named", (_, line, message) => {
  expect(() => [...readTraceJsonl(`\n${line}\n`, "a.jsonl")]).toThrow(message);
});

test("a file that is no Parquet table is named", async () => {
  const bytes = new TextEncoder().encode("not a table at all");
  await expect(collect(readTraceParquet(bufferOf(bytes), "a.parquet"))).rejects.toThrow(
    /^Cannot read the Parquet file: .*\(a\.parquet\)\.$/,
  );
});

test("a span has the conventions' names of sampling parameters", async () => {
  const [line] = await collect(writeSpans(exportItems(await filled(), { session_ids: ["s"] })));
  const [{ attributes }] = JSON.parse(line!).resourceSpans[0].scopeSpans[0].spans;
  const requested = attributes.filter(({ key }: { key: string }) => key.startsWith("gen_ai.request."));
  expect(requested).toEqual([
    { key: "gen_ai.request.model", value: { stringValue: "tiny" } },
    { key: "gen_ai.request.temperature", value: { doubleValue: 0.5 } },
    { key: "gen_ai.request.top_p", value: { doubleValue: 1 } },
    { key: "gen_ai.request.top_k", value: { doubleValue: -1 } },
    { key: "gen_ai.request.max_tokens", value: { intValue: "8" } },
  ]);
});

describe("spans of other programs", () => {
  const attribute = (key: string, value: object) => ({ key, value });
  const text = (key: string, value: string) => attribute(key, { stringValue: value });
  const span = (attributes: object[]) => ({
    resourceSpans: [
      {
        scopeSpans: [
          {
            spans: [
              {
                ...{ traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331", name: "chat gpt" },
                ...{ startTimeUnixNano: "1700000000500000000", endTimeUnixNano: "1700000001000000000", attributes },
              },
            ],
          },
        ],
      },
    ],
  });
  const parts = (value: object[]) => ({
    arrayValue: {
      values: value.map((part) => ({
        kvlistValue: { values: Object.entries(part).map(([key, stringValue]) => ({ key, value: { stringValue } })) },
      })),
    },
  });

  test("are kept, with their conversation, and cannot be trained on", async () => {
    const message = { role: "user", parts: [{ type: "text", content: "hi" }] };
    const structured = attribute("gen_ai.output.messages", {
      arrayValue: {
        values: [
          {
            kvlistValue: {
              values: [
                text("role", "assistant"),
                attribute("parts", parts([{ type: "text", content: "hello" }])),
                text("finish_reason", "stop"),
              ],
            },
          },
        ],
      },
    });
    const value = span([
      text("gen_ai.operation.name", "chat"),
      text("gen_ai.request.model", "gpt"),
      text("gen_ai.system_instructions", JSON.stringify([{ type: "text", content: "be short" }])),
      text("gen_ai.input.messages", JSON.stringify([message])),
      structured,
      attribute("gen_ai.usage.input_tokens", { intValue: "12" }),
      attribute("gen_ai.request.temperature", { doubleValue: 0.25 }),
      attribute("gen_ai.response.finish_reasons", { arrayValue: { values: [{ stringValue: "stop" }] } }),
    ]);
    const items = [...readSpans(value, { file: "a.otlp" })];
    expect(items).toEqual([
      {
        trace: {
          ...makeTrace({ trace_id: "b7ad6b7169203331", session_id: "0af7651916cd43dd8448eb211c80319c", model: "gpt" }),
          messages: [
            { role: "system", content: "be short" },
            { role: "user", content: "hi" },
          ],
          response_message: { role: "assistant", content: "hello" },
          ...{ prompt_token_ids: [], completion_token_ids: [], logprobs: null, weight_version: null },
          ...{ latency_ms: 500, timestamp: 1700000000.5, token_counts: { prompt: 12, completion: 0 } },
          sampling_params: { temperature: 0.25 },
        },
      },
    ]);
    const store = await openTraceStore("memory");
    expect(await importItems(store, items)).toMatchObject({ traces: 1, untrainable: 1 });
  });

  test("of other operations are left out", () => {
    expect([...readSpans(span([text("gen_ai.operation.name", "execute_tool")]), {})]).toEqual([]);
    expect([...readSpans(span([]), {})]).toEqual([]);
  });

  test("that are none are named", () => {
    expect(() => [...readSpans({ resourceSpans: [{}] }, { file: "a.otlp" })]).toThrow(
      /^Cannot read OpenTelemetry spans: resourceSpans\.0\.scopeSpans: .*\(a\.otlp\)\.$/,
    );
    const broken = span([text("gen_ai.operation.name", "chat"), text("gen_ai.input.messages", "[")]);
    expect(() => [...readSpans(broken, { file: "a.otlp" })]).toThrow(/not JSON \(\[\).*gen_ai\.input\.messages\)\.$/);
  });
});
