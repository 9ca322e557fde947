/** Random operations: both stores answer as a model that keeps plain lists does. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import type { SessionRecord, SessionSummary, TraceQuery, TraceRecord } from "../../../src/engine/contract/trace.ts";
import { type OpenTraceStore, openTraceStore } from "../../../src/train/trace/mod.ts";
import { makeTrace } from "./make_trace.ts";

/** What the contract says, as slowly as it is read. */
class Model {
  clock = 0;
  traces: { trace: TraceRecord; at: number; sessions: string[] }[] = [];
  sessions: SessionRecord[] = [];

  putTrace(trace: TraceRecord) {
    const at = this.clock++;
    const known = this.traces.find((each) => each.trace.trace_id === trace.trace_id);
    if (!known) this.traces.push({ trace, at, sessions: [trace.session_id] });
    else Object.assign(known, { trace, sessions: [...known.sessions, trace.session_id] });
  }
  find({ session_id, trace_ids, since, limit }: TraceQuery) {
    return this.traces
      .filter(({ sessions }) => session_id === undefined || sessions.includes(session_id))
      .filter(({ trace }) => !trace_ids || trace_ids.includes(trace.trace_id))
      .filter(({ at }) => since === undefined || at >= since)
      .slice(0, limit)
      .map(({ trace }) => trace);
  }
  putSession(session: SessionRecord) {
    this.sessions = [...this.sessions.filter((each) => each.session_id !== session.session_id), session];
  }
  summary(session_id: string): SessionSummary | undefined {
    const record = this.sessions.find((each) => each.session_id === session_id);
    const times = this.traces.filter(({ sessions }) => sessions.includes(session_id)).map(({ at }) => at);
    if (!record && times.length === 0) return undefined;
    const [first_at = null, last_at = null] = [times[0], times.at(-1)];
    return {
      ...(record ?? { session_id, metadata: {}, created_at: first_at ?? 0 }),
      ...{ trace_count: times.length, first_at, last_at },
    };
  }
  list({ since = Number.NEGATIVE_INFINITY, limit }: Pick<TraceQuery, "since" | "limit">) {
    const ids = new Set([...this.sessions.map((each) => each.session_id), ...this.traces.flatMap((t) => t.sessions)]);
    return [...ids]
      .sort()
      .map((id) => this.summary(id)!)
      .filter(({ created_at, last_at }) => Math.max(created_at, last_at ?? created_at) >= since)
      .sort((a, b) => b.created_at - a.created_at)
      .slice(0, limit);
  }
  deleteSessions(ids: readonly string[]) {
    const before = this.traces.length;
    this.sessions = this.sessions.filter(({ session_id }) => !ids.includes(session_id));
    const left = this.traces.map((each) => ({ ...each, sessions: each.sessions.filter((id) => !ids.includes(id)) }));
    this.traces = left.filter(({ sessions }) => sessions.length > 0);
    return before - this.traces.length;
  }
}

const sessionId = fc.constantFrom("s", "t/1:0", "ü 😀", "o'; --");
const traceId = fc.constantFrom("a", "b", "c", "d", "e", "f");
const time = fc.option(fc.integer({ min: 0, max: 40 }), { nil: undefined });
const limit = fc.option(fc.nat({ max: 4 }), { nil: undefined });
const token = fc.nat({ max: 2 ** 32 - 1 });
const logprob = fc.double({ min: -50, max: 0, noNaN: true }).map((value) => value + 0); // JSON has no -0.
const json = fc.jsonValue({ maxDepth: 2 }) as fc.Arbitrary<unknown>;

const trace = fc
  .record({
    trace_id: traceId,
    session_id: sessionId,
    prompt_token_ids: fc.array(token, { maxLength: 4 }),
    sampled: fc.array(fc.tuple(token, logprob), { maxLength: 4 }),
    hasLogprobs: fc.boolean(),
    isSingle: fc.boolean(),
    metadata: fc.dictionary(fc.constantFrom("task", "__proto__x", "name"), json),
  })
  .map(({ sampled, hasLogprobs, isSingle, ...fields }) =>
    makeTrace({
      ...fields,
      completion_token_ids: sampled.map(([id]) => id),
      logprobs: hasLogprobs ? sampled.map(([, value]) => (isSingle ? Math.fround(value) + 0 : value)) : null,
    }),
  );

const session = fc.record(
  {
    session_id: sessionId,
    metadata: fc.dictionary(fc.constantFrom("task", "name"), json),
    created_at: fc.integer({ min: 0, max: 40 }),
    outcome: fc.record({ reward: fc.constantFrom(null, 0, 0.5, 1), ended_at: fc.nat() }),
  },
  { requiredKeys: ["session_id", "metadata", "created_at"] },
) as fc.Arbitrary<SessionRecord>;

interface Reopened {
  store: OpenTraceStore;
  reopen(): Promise<void>;
}

type Real = Reopened;
type Operation = fc.AsyncCommand<Model, Real>;

const operation = (name: string, run: (model: Model, real: Real) => Promise<void>): Operation => ({
  check: () => true,
  run,
  toString: () => name,
});
const show = (name: string, ...values: unknown[]) =>
  `${name}(${values.map((each) => JSON.stringify(each)).join(", ")})`;

const operations = [
  trace.map((each) =>
    operation(show("putTrace", each), async (model, { store }) => {
      model.putTrace(each);
      await store.putTrace(each);
    }),
  ),
  session.map((each) =>
    operation(show("putSession", each), async (model, { store }) => {
      model.putSession(each);
      await store.putSession(each);
    }),
  ),
  fc
    .record({
      session_id: fc.option(sessionId, { nil: undefined }),
      trace_ids: fc.option(fc.array(traceId, { maxLength: 3 }), { nil: undefined }),
      since: time,
      limit,
    })
    .map((query) =>
      operation(show("traces", query), async (model, { store }) => {
        expect(await store.traces(query)).toEqual(model.find(query));
      }),
    ),
  fc.record({ since: time, limit }).map((query) =>
    operation(show("sessions", query), async (model, { store }) => {
      expect(await store.sessions(query)).toEqual(model.list(query));
    }),
  ),
  fc.tuple(sessionId, traceId).map(([s, t]) =>
    operation(show("get", s, t), async (model, { store }) => {
      expect(await store.getSession(s)).toEqual(model.summary(s));
      expect(await store.getTrace(t)).toEqual(model.find({ trace_ids: [t] })[0]);
    }),
  ),
  fc.array(sessionId, { maxLength: 3 }).map((ids) =>
    operation(show("deleteSessions", ids), async (model, { store }) => {
      expect(await store.deleteSessions(ids)).toBe(model.deleteSessions(ids));
      expect(await store.size()).toMatchObject({ traces: model.traces.length, sessions: model.list({}).length });
    }),
  ),
  fc.constant(operation("reopen", (_, real) => real.reopen())),
];

const folder = mkdtempSync(join(tmpdir(), "grpu-traces-"));
afterAll(() => rmSync(folder, { recursive: true }));
let files = 0;

test.each([
  ["memory", 300],
  ["sqlite", 25],
] as const)("%s", async (kind, numRuns) => {
  await fc.assert(
    fc.asyncProperty(fc.commands(operations, { maxCommands: 40, size: "max" }), async (commands) => {
      const model = new Model();
      const now = () => model.clock - 1;
      const place = kind === "memory" ? kind : join(folder, `${files++}.db`);
      const real = {
        store: await openTraceStore(place, { now }),
        async reopen() {
          if (kind === "memory") return;
          await this.store.close();
          this.store = await openTraceStore(place, { now });
        },
      };
      try {
        await fc.asyncModelRun(() => ({ model, real }), commands);
      } finally {
        await real.store.close();
      }
    }),
    { numRuns, seed: 16 },
  );
});
