import { afterEach, describe, expect, test, vi } from "vitest";
import { PLAIN_REQUEST } from "../../../src/chat/request.ts";
import type { TraceRecord } from "../../../src/engine/contract/trace.ts";
import { CallRecorder } from "../../../src/serve/gateway/mod.ts";
import { MemoryTraceStore } from "../../../src/train/trace/mod.ts";
import { call, closeGateways, END, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

afterEach(closeGateways);
afterEach(() => void vi.useRealTimers());

const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };

/** A store whose first writes of a trace fail. */
class FailingStore extends MemoryTraceStore {
  failures: number;
  constructor(failures: number) {
    super();
    this.failures = failures;
  }
  override async putTrace(trace: TraceRecord): Promise<void> {
    if (this.failures-- > 0) throw new Error("database is locked");
    await super.putTrace(trace);
  }
}

const TRACE = { trace_id: "t", session_id: "s" } as TraceRecord;

describe("a store that fails", () => {
  test.each([
    [3, { stored: 1, pending: 0, lost: 0 }, 1],
    [100, { stored: 0, pending: 0, lost: 1 }, 0],
  ])("%i times: flush waits for the result, which is counted and logged", async (failures, figures, count) => {
    vi.useFakeTimers();
    const lines: string[] = [];
    const store = new FailingStore(failures);
    const recorder = new CallRecorder({ store, log: (line) => lines.push(line) });
    const trace = (await traceOf()) ?? TRACE;
    await recorder.put(trace);
    expect(recorder.figures).toMatchObject({ stored: 0, pending: 1 });
    const flushed = recorder.flush();
    await vi.advanceTimersByTimeAsync(300_000);
    await flushed;
    expect(recorder.figures).toMatchObject(figures);
    expect(await store.traces({})).toHaveLength(count);
    expect(lines[0]).toMatch(/could not store the trace .* of session s: database is locked; it is tried again/);
    expect(lines).toHaveLength(count === 1 ? 1 : 2);
  });

  test("a recorder that closes gives up what the store does not take, and says so", async () => {
    const lines: string[] = [];
    const recorder = new CallRecorder({ store: new FailingStore(1000), log: (line) => lines.push(line) });
    await recorder.put((await traceOf())!);
    const started = performance.now();
    await recorder.close(200);
    expect(performance.now() - started).toBeLessThan(5000);
    expect(recorder.figures).toMatchObject({ stored: 0, pending: 0, lost: 1 });
    expect(lines.at(-1)).toMatch(/^gave up storing the trace .*database is locked/);
  });

  test("what waits for it is bounded: further traces are dropped and counted, and one line says so", async () => {
    vi.useFakeTimers();
    const lines: string[] = [];
    const store = new FailingStore(3);
    const trace = (await traceOf())!;
    const one = new CallRecorder({ store: new FailingStore(99) });
    await one.put(trace);
    const { bytes } = one.figures;
    expect(bytes).toBeGreaterThan(1000);
    const recorder = new CallRecorder({ store, log: (line) => lines.push(line), mostBytes: 2.5 * bytes });
    for (const id of ["a", "b", "c", "d"]) await recorder.put({ ...trace, trace_id: id });
    expect(recorder.figures).toEqual({ stored: 0, pending: 2, lost: 2, bytes: 2 * bytes });
    expect(lines.filter((line) => line.startsWith("dropped"))).toEqual([
      expect.stringMatching(
        /^dropped the trace c of session s: 2 traces of about 0\.0 MiB wait for the store, at most 0\.0/,
      ),
    ]);
    const flushed = recorder.flush();
    await vi.advanceTimersByTimeAsync(300_000);
    await flushed;
    expect(recorder.figures).toEqual({ stored: 2, pending: 0, lost: 2, bytes: 0 });
    expect(lines.at(-1)).toBe("the store keeps up again; 2 traces were dropped");
    await recorder.put({ ...trace, trace_id: "e" });
    await recorder.flush();
    expect((await store.traces({})).map(({ trace_id }) => trace_id).sort()).toEqual(["a", "b", "e"]);
  });

  test("a single trace is stored however large it is", async () => {
    const store = new FailingStore(0);
    const recorder = new CallRecorder({ store, mostBytes: 1 });
    await recorder.put((await traceOf())!);
    await recorder.flush();
    expect(recorder.figures).toMatchObject({ stored: 1, lost: 0 });
  });

  test("answers do not wait for it, unless traces are synchronous", async () => {
    for (const syncTraces of [false, true]) {
      const store = new FailingStore(0);
      let release: () => void = () => {};
      const held = new Promise<void>((resolve) => {
        release = resolve;
      });
      const put = store.putTrace.bind(store);
      store.putTrace = async (trace) => {
        await held;
        await put(trace);
      };
      const { url } = await openGateway({ store, syncTraces });
      const answered = call(`${url}/sessions/s/v1/chat/completions`, { body: CHAT });
      if (syncTraces) {
        const soon = new Promise((resolve) => setTimeout(resolve, 200, "waits"));
        expect(await Promise.race([answered, soon])).toBe("waits");
      } else expect((await answered).status).toBe(200);
      release();
      await answered;
      expect((await call(`${url}/admin/flush`, { method: "POST" })).body).toEqual({ status: "flushed" });
      expect(await store.traces({})).toHaveLength(1);
    }
  });
});

/** A complete trace, from a recorded call. */
async function traceOf(): Promise<TraceRecord | undefined> {
  const store = new MemoryTraceStore();
  const engine = await scriptedHost(() => `one${END}`).open({ model: "m", history: [] });
  const recorded = new CallRecorder({ store, syncTraces: true }).wrap(engine, { session_id: "s", metadata: { a: 1 } });
  await recorded.complete({ ...PLAIN_REQUEST, prompt: "in", metadata: { b: 2 }, seed: 5 });
  return (await store.traces({}))[0];
}

test("a trace holds everything that the contract names", async () => {
  expect(await traceOf()).toMatchObject({
    trace_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
    session_id: "s",
    model: "m",
    messages: [],
    response_message: { role: "assistant", content: "one" },
    finish_reason: "stop",
    weight_version: 4,
    prompt_origin: "rendered",
    parent_trace_id: null,
    metadata: { a: 1, b: 2 },
    raw_request: { n: 1, seed: 5 },
    // The model's defaults: the request names none.
    sampling_params: { temperature: 1, top_p: 1, top_k: 0, max_tokens: 200 },
    token_counts: { prompt: 1 },
    timings: { first_token_ms: expect.any(Number) },
  });
  const trace = (await traceOf())!;
  expect(trace.logprobs).toHaveLength(trace.completion_token_ids.length);
  expect(Math.abs(trace.timestamp - Date.now() / 1000)).toBeLessThan(60);
});

/** Starts a streamed reply, and leaves after its first bytes. */
async function vanish(url: string, messages: readonly object[] = CHAT.messages): Promise<void> {
  const leaving = new AbortController();
  const body = JSON.stringify({ ...CHAT, messages, stream: true, max_tokens: 4000 });
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { method: "POST", signal: leaving.signal, headers, body });
  await response.body!.getReader().read();
  leaving.abort();
}

test("a client that vanishes in mid-stream leaves one trace, marked, with the tokens it may have seen", async () => {
  const { url, store } = await openGateway({ script: () => undefined });
  await vanish(`${url}/sessions/s/v1/chat/completions`);
  await expect.poll(() => store.traces({})).toHaveLength(1);
  const [trace] = await store.traces({});
  expect(trace).toMatchObject({ finish_reason: "abort", prompt_origin: "rendered", parent_trace_id: null });
  expect(trace!.completion_token_ids.length).toBeGreaterThan(0);
  expect(trace!.logprobs).toHaveLength(trace!.completion_token_ids.length);
});

test("of 300 calls in 60 sessions, some of which vanish, none is lost and none is recorded twice", async () => {
  const script = (prompt: string) => (prompt.includes("endless") ? undefined : `one${END}`);
  const { url, store } = await openGateway({ script, syncTraces: false });
  const endless = [{ role: "user", content: "endless" }];
  const session = async (id: number) => {
    const at = `${url}/sessions/s${id}/v1/chat/completions`;
    for (let i = 0; i < 5; i++) {
      if (id % 10 === 0 && i === 2) await vanish(at, endless);
      else expect((await call(at, { body: CHAT })).status).toBe(200);
    }
  };
  await Promise.all(Array.from({ length: 60 }, (_, id) => session(id)));
  await expect.poll(async () => (await store.traces({})).length, { timeout: 10_000 }).toBe(300);
  await call(`${url}/admin/flush`, { method: "POST" });
  const traces = await store.traces({});
  expect(new Set(traces.map(({ trace_id }) => trace_id)).size).toBe(300);
  expect(traces.filter(({ finish_reason }) => finish_reason === "abort")).toHaveLength(6);
}, 30_000);
