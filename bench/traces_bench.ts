/** Trace stores: what a put, the reading of a session and the listing of all sessions take. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TraceRecord } from "../src/engine/contract/trace.ts";
import { type OpenTraceStore, openTraceStore } from "../src/train/trace/mod.ts";
import { check, heading, remark } from "./harness.ts";

const SESSIONS = 500;
const CALLS = 4;
const PROMPT = 1000;
const REPLY = 300;

/** A call of a conversation: 1,000 tokens in, 300 out, 4 kB of messages. */
function trace(session: number, call: number): TraceRecord {
  const logprobs = Array.from({ length: REPLY }, (_, i) => Math.fround(-((i * 37 + call) % 101) / 77));
  return {
    ...{ trace_id: `${session}-${call}`, session_id: `s${session}`, model: "bench" },
    messages: [{ role: "user", content: "x".repeat(4000) }],
    prompt_token_ids: Array.from({ length: PROMPT }, (_, i) => (i * 7919) % 150_000),
    response_message: { role: "assistant", content: "y".repeat(1200) },
    completion_token_ids: Array.from({ length: REPLY }, (_, i) => (i * 104_729) % 150_000),
    logprobs,
    ...{ finish_reason: "stop", weight_version: call, latency_ms: 1, timestamp: session, metadata: {} },
    token_counts: { prompt: PROMPT, completion: REPLY },
  };
}

export async function run(): Promise<void> {
  const root = await mkdtemp(join(tmpdir(), "grpu-trace-bench-"));
  heading(`${SESSIONS} sessions of ${CALLS} calls, ${PROMPT} + ${REPLY} tokens each`);
  await measure("memory", "memory");
  await measure("sqlite", join(root, "traces.db"));
  await rm(root, { recursive: true });
}

async function measure(name: string, place: string): Promise<void> {
  const store = await openTraceStore(place);
  const traces = Array.from({ length: SESSIONS * CALLS }, (_, i) => trace(i % SESSIONS, Math.floor(i / SESSIONS)));
  const slowest = { put: 0 };
  const put = await microseconds(traces.length, async (i) => {
    const before = performance.now();
    await store.putTrace(traces[i]!);
    slowest.put = Math.max(slowest.put, performance.now() - before);
  });
  const read = await microseconds(SESSIONS, async (i) => checkSession(store, (i * 7919) % SESSIONS));
  const list = await microseconds(10, async () => {
    check((await store.sessions({})).length === SESSIONS, "a session is missing");
  });
  const { bytes } = await store.size();
  remark(
    `${name}: put ${put.toFixed(0)} us (slowest ${slowest.put.toFixed(1)} ms), read a session ${read.toFixed(0)} us, list ${(list / 1000).toFixed(1)} ms, ${(bytes / traces.length / 1024).toFixed(1)} KiB a trace`,
  );
  await store.close();
}

async function checkSession(store: OpenTraceStore, session: number): Promise<void> {
  const found = await store.traces({ session_id: `s${session}` });
  check(found.length === CALLS && found[3]!.logprobs![5] === trace(session, 3).logprobs![5], "a trace is wrong");
}

/** Mean over `count` calls, one after the other. */
async function microseconds(count: number, run: (i: number) => Promise<void>): Promise<number> {
  const before = performance.now();
  for (let i = 0; i < count; i++) await run(i);
  return ((performance.now() - before) * 1000) / count;
}
