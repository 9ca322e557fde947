/** The oldest sessions go first, whole; one that runs stays. */
import { describe, expect, test } from "vitest";
import { openTraceStore, prune, type Retention } from "../../../src/train/trace/mod.ts";
import { makeTrace } from "./make_trace.ts";

/** Sessions s0 (oldest) to s4 with two traces each, 100 s apart from 1,000 on; s1 has not ended. */
async function filled() {
  let at = 0;
  const store = await openTraceStore("memory", { now: () => at });
  for (let s = 0; s < 5; s++) {
    at = 1000 + 100 * s;
    const session_id = `s${s}`;
    for (const trace_id of [`${s}a`, `${s}b`]) await store.putTrace(makeTrace({ trace_id, session_id }));
    const outcome = s === 1 ? undefined : { reward: 1, ended_at: at };
    await store.putSession({ session_id, metadata: {}, created_at: at, ...(outcome && { outcome }) });
  }
  return store;
}

const BYTES = (await (await filled()).size()).bytes;

describe("prune", () => {
  const cases: [string, Retention, number, string][] = [
    ["nothing without limits", {}, 1500, "s0 s1 s2 s3 s4"],
    ["what is older", { max_age_s: 250 }, 1500, "s1 s3 s4"],
    ["what is older, of a session that was left long ago too", { max_age_s: 250 }, 1750, ""],
    ["the oldest above a number of traces", { max_traces: 7 }, 1500, "s1 s3 s4"],
    ["nothing at the number", { max_traces: 10 }, 1500, "s0 s1 s2 s3 s4"],
    ["the oldest above a size", { max_bytes: 0.7 * BYTES }, 1500, "s1 s3 s4"],
    ["all but what runs", { max_traces: 0 }, 1500, "s1"],
    ["by both limits", { max_age_s: 450, max_traces: 6 }, 1500, "s1 s3 s4"],
  ];
  test.each(cases)("%s", async (_, retention, now, left) => {
    const store = await filled();
    const { sessions, traces } = await prune(store, { retention, now });
    const kept = (await store.sessions({})).map(({ session_id }) => session_id).reverse();
    expect(kept.join(" ")).toBe(left);
    expect([sessions, traces]).toEqual([5 - kept.length, 10 - 2 * kept.length]);
  });
});

test("a store with limits keeps to them while it is filled", async () => {
  let at = 0;
  const now = () => at++;
  const store = await openTraceStore("memory", { now, retention: { max_traces: 300 } });
  let most = 0;
  for (let i = 0; i < 3000; i++) {
    const session_id = `s${i}`;
    await store.putTrace(makeTrace({ trace_id: `${i}`, session_id }));
    await store.putSession({ session_id, metadata: {}, created_at: at, outcome: { reward: 0, ended_at: at } });
    most = Math.max(most, i % 256 === 255 ? (await store.size()).traces : 0);
  }
  expect(most).toBeGreaterThan(250);
  expect(most).toBeLessThanOrEqual(301);
  expect(await store.getTrace("2999")).toBeDefined();
});
