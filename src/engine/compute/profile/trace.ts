/** A profile in the Trace Event Format of Chrome, which ui.perfetto.dev opens: one lane per phase, kernel and kind of host event. */
import { kernelRuns, type Profile, type Span } from "./profile.ts";

/** An event of the format; times in microseconds. */
export interface TraceEvent {
  readonly name: string;
  /** `X`: complete; `b` and `e`: begin and end of one that may overlap its neighbours; `M`: names a lane. */
  readonly ph: "X" | "b" | "e" | "M";
  readonly pid: number;
  readonly tid: number;
  readonly ts?: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly id?: number;
  readonly args?: Readonly<Record<string, string | number>>;
}

const GROUPS = { phases: 1, host: 2, kernels: 3 } as const;

/** The events of a profile, lane after lane, each in order of time. */
export function* traceEvents(profile: Profile): Generator<TraceEvent> {
  const since = profile.start;
  yield* lanesOf(profile.spans, { group: "phases", title: "phases", since });
  yield* hostEvents(profile);
  const title = "kernels (GPU time)";
  yield* lanesOf([...kernelRuns(profile.batches)], { group: "kernels", title, since });
}

interface LaneOptions {
  readonly group: keyof typeof GROUPS;
  readonly title: string;
  readonly since: number;
}

/** One lane for each name, in the order of their first events. */
function* lanesOf(spans: readonly Span[], { group, title, since }: LaneOptions): Generator<TraceEvent> {
  const pid = GROUPS[group];
  yield named("process_name", { pid, tid: 0, name: title });
  const lanes = new Map<string, Span[]>();
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    const lane = lanes.get(span.name);
    if (lane) lane.push(span);
    else lanes.set(span.name, [span]);
  }
  let tid = 0;
  for (const [name, lane] of lanes) {
    tid++;
    yield named("thread_name", { pid, tid, name });
    // The format wants the events of a lane apart, or one within another.
    let free = Number.NEGATIVE_INFINITY;
    for (const { start, end } of lane) {
      const from = Math.max(start, free);
      free = Math.max(end, from);
      yield { name, ph: "X", pid, tid, ...placed(from, since), dur: microseconds(free - from) };
    }
  }
}

/** Submits follow each other; waits may overlap. */
function* hostEvents({ events, start: since }: Profile): Generator<TraceEvent> {
  const pid = GROUPS.host;
  yield named("process_name", { pid, tid: 0, name: "host" });
  const lanes = { compile: 1, submit: 2, wait: 3, "read-back": 4 } as const;
  for (const [name, tid] of Object.entries(lanes)) yield named("thread_name", { pid, tid, name });
  for (const [id, { kind, start, end, dispatches, bytes }] of events.entries()) {
    const args = { ...(dispatches !== undefined && { dispatches }), ...(bytes !== undefined && { bytes }) };
    const event = { name: kind, pid, tid: lanes[kind] };
    if (kind === "submit") yield { ...event, ph: "X", ...placed(start, since), dur: microseconds(end - start), args };
    else {
      yield { ...event, ph: "b", cat: kind, id, ...placed(start, since), args };
      yield { ...event, ph: "e", cat: kind, id, ...placed(end, since) };
    }
  }
}

function named(
  kind: "process_name" | "thread_name",
  { pid, tid, name }: { pid: number; tid: number; name: string },
): TraceEvent {
  return { name: kind, ph: "M", pid, tid, args: { name } };
}

function placed(at: number, since: number): { ts: number } {
  return { ts: microseconds(at - since) };
}

/** Returns microseconds to the nanosecond. */
function microseconds(ms: number): number {
  return Math.round(ms * 1e6) / 1e3;
}

/** The file, in pieces. `facts` is what it says of the run. */
export function* traceText(profile: Profile, facts: Readonly<Record<string, string>>): Generator<string> {
  yield `{"displayTimeUnit":"ms","otherData":${JSON.stringify(facts)},"traceEvents":[\n`;
  let separator = "";
  for (const event of traceEvents(profile)) {
    yield separator + JSON.stringify(event);
    separator = ",\n";
  }
  yield "\n]}\n";
}
