/** Both stores keep to one contract: what the memory store does, the database does too. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import type { TraceRecord } from "../../../src/engine/contract/trace.ts";
import { openTraceStore } from "../../../src/train/trace/mod.ts";
import { makeTrace } from "./make_trace.ts";

/** A clock that advances by one second at each look. */
function ticking(start = 100) {
  let at = start;
  return () => at++;
}

const ids = (traces: readonly TraceRecord[]) => traces.map((trace) => trace.trace_id);

const folder = mkdtempSync(join(tmpdir(), "grpu-traces-"));
afterAll(() => rmSync(folder, { recursive: true }));

let databases = 0;
const PLACES: Readonly<Record<string, () => string>> = {
  memory: () => "memory",
  sqlite: () => join(folder, `${databases++}.db`),
};

describe.each(Object.entries(PLACES))("%s", (_, place) => {
  const open = () => openTraceStore(place(), { now: ticking() });

  test("returns a trace as it was put, whatever its precision", async () => {
    const store = await open();
    const logprobs = [-0.1, Math.fround(-0.2), 0];
    const trace = makeTrace({ trace_id: "a", completion_token_ids: [7, 8, 9], logprobs, metadata: { k: [1, null] } });
    await store.putTrace(trace);
    expect(await store.getTrace("a")).toEqual(trace);
    expect(await store.getTrace("b")).toBeUndefined();
  });

  test("a change of what was put does not reach the store", async () => {
    const store = await open();
    const metadata = { team: "red" };
    await store.putTrace(makeTrace({ trace_id: "a", metadata }));
    metadata.team = "blue";
    expect((await store.getTrace("a"))?.metadata).toEqual({ team: "red" });
  });

  test("a trace that is put again is replaced and keeps its place", async () => {
    const store = await open();
    for (const trace_id of ["a", "b", "a"])
      await store.putTrace(makeTrace({ trace_id, session_id: "s", latency_ms: 5 }));
    await store.putTrace(makeTrace({ trace_id: "a", session_id: "s", latency_ms: 6 }));
    const traces = await store.traces({ session_id: "s" });
    expect(ids(traces)).toEqual(["a", "b"]);
    expect(traces[0]?.latency_ms).toBe(6);
    expect(ids(await store.traces({ since: 101 }))).toEqual(["b"]);
  });

  test("conditions of a query hold together", async () => {
    const store = await open();
    for (const [trace_id, session_id] of [
      ["a", "s"],
      ["b", "t"],
      ["c", "s"],
      ["d", "s"],
    ] as const)
      await store.putTrace(makeTrace({ trace_id, session_id }));
    expect(ids(await store.traces({}))).toEqual(["a", "b", "c", "d"]);
    expect(ids(await store.traces({ session_id: "s", since: 102 }))).toEqual(["c", "d"]);
    expect(ids(await store.traces({ session_id: "s", since: 101, limit: 1 }))).toEqual(["c"]);
    expect(ids(await store.traces({ trace_ids: ["d", "b", "x"], session_id: "s" }))).toEqual(["d"]);
    expect(ids(await store.traces({ limit: 0 }))).toEqual([]);
  });

  test("sessions are listed newest first, with their traces counted, announced or not", async () => {
    const store = await open();
    await store.putTrace(makeTrace({ trace_id: "a", session_id: "unannounced" }));
    await store.putSession({ session_id: "s", metadata: { task: 1 }, created_at: 300 });
    await store.putTrace(makeTrace({ trace_id: "b", session_id: "s" }));
    await store.putTrace(makeTrace({ trace_id: "c", session_id: "s" }));
    await store.putSession({ session_id: "empty", metadata: {}, created_at: 200 });
    expect(await store.sessions({})).toEqual([
      { session_id: "s", metadata: { task: 1 }, created_at: 300, trace_count: 2, first_at: 101, last_at: 102 },
      { session_id: "empty", metadata: {}, created_at: 200, trace_count: 0, first_at: null, last_at: null },
      { session_id: "unannounced", metadata: {}, created_at: 100, trace_count: 1, first_at: 100, last_at: 100 },
    ]);
    expect((await store.sessions({ since: 200 })).map((each) => each.session_id)).toEqual(["s", "empty"]);
    expect((await store.sessions({ limit: 1 })).map((each) => each.session_id)).toEqual(["s"]);
    expect(await store.getSession("none")).toBeUndefined();
  });

  test("a session that is put again is replaced", async () => {
    const store = await open();
    const session = { session_id: "s", metadata: {}, created_at: 1 };
    await store.putSession({ ...session, sampling_params: { temperature: 0 } });
    await store.putSession({ ...session, outcome: { reward: 1, ended_at: 9 } });
    const found = await store.getSession("s");
    expect(found?.outcome).toEqual({ reward: 1, ended_at: 9 });
    expect(found).not.toHaveProperty("sampling_params");
  });

  test("a deleted session takes the traces along that no other session shares", async () => {
    const store = await open();
    await store.putTrace(makeTrace({ trace_id: "own", session_id: "s" }));
    await store.putTrace(makeTrace({ trace_id: "shared", session_id: "s" }));
    await store.putTrace(makeTrace({ trace_id: "shared", session_id: "t" }));
    expect(await store.deleteSessions(["s", "none"])).toBe(1);
    expect(await store.getSession("s")).toBeUndefined();
    expect(ids(await store.traces({ session_id: "t" }))).toEqual(["shared"]);
    expect(await store.deleteSessions(["t"])).toBe(1);
    expect(await store.size()).toMatchObject({ sessions: 0, traces: 0 });
  });
});
