/** Recorded conversations as the page of traces reads them: plain JSON, with the text of every token. */

import type {
  PromptOrigin,
  SessionRecord,
  SessionSummary,
  TraceRecord,
  TraceStore,
} from "../../../engine/contract/trace.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { withoutKey } from "../sessions.ts";

/** A session in the page's list. */
export interface ListedSession extends SessionSummary {
  /** Subject of the session: the text of its first message. */
  readonly title: string;
  /** Model of its first call; null without one. */
  readonly model: string | null;
  readonly weight_version: number | null;
}

export interface SessionList {
  /** Newest first. */
  readonly sessions: readonly ListedSession[];
  /** There are older ones. */
  readonly isCut: boolean;
}

/** One token. */
export interface TokenView {
  readonly id: number;
  readonly text: string;
  /** Absent for tokens of the prompt, and where the worker returned none. */
  readonly logprob?: number;
}

/** One call. */
export interface TraceView {
  readonly trace_id: string;
  readonly model: string;
  readonly timestamp: number;
  readonly latency_ms: number;
  readonly finish_reason: string | null;
  readonly weight_version: number | null;
  readonly prompt_origin: PromptOrigin | null;
  readonly parent_trace_id: string | null;
  readonly messages: TraceRecord["messages"];
  readonly response_message: TraceRecord["response_message"];
  readonly metadata: TraceRecord["metadata"];
  readonly timings: NonNullable<TraceRecord["timings"]>;
  readonly token_counts: TraceRecord["token_counts"];
  /** Tokens of the prompt that the parent's prompt and reply have in common with it; not repeated in `prompt`. */
  readonly shared: number;
  readonly prompt: readonly TokenView[];
  readonly completion: readonly TokenView[];
  /** Whether the completion's tokens can be trained on: a worker that returns no log-probs leaves none. */
  readonly isTrainable: boolean;
}

export interface SessionView {
  readonly session: SessionRecord;
  /** Oldest first. */
  readonly traces: readonly TraceView[];
  /** Calls beyond those shown. */
  readonly rest: number;
}

/** Data that the page's script starts with. */
export interface TracePageData {
  /** Address of the lists, relative to the page. */
  readonly base: string;
  /** Address of the page that led here. */
  readonly home?: string | undefined;
}

/** Calls of one session that a page shows. */
const MOST_CALLS = 100;
const TITLE_CHARACTERS = 160;

/** Text of token ids; absent where no model is at hand: ids are shown then. */
export type Decode = (id: number) => string;

/** The newest sessions. */
export async function listSessions(store: TraceStore, { limit }: { limit: number }): Promise<SessionList> {
  const found = await store.sessions({ limit: limit + 1 });
  const shown = found.slice(0, limit);
  const sessions = await Promise.all(shown.map((session) => listed(store, session)));
  return { sessions, isCut: found.length > limit };
}

async function listed(store: TraceStore, session: SessionSummary): Promise<ListedSession> {
  const [first] = await store.traces({ session_id: session.session_id, limit: 1 });
  const asked = first?.messages.find(({ role }) => role === "user") ?? first?.messages[0];
  return {
    ...withoutKey(session),
    title: textOf(asked?.content).slice(0, TITLE_CHARACTERS),
    model: first?.model ?? null,
    weight_version: first?.weight_version ?? null,
  };
}

function textOf(content: unknown): string {
  return typeof content === "string" ? content : content === undefined ? "" : stringifyJson(content);
}

/** One session with its calls. @returns undefined for an unknown id */
export async function viewSession(
  store: TraceStore,
  { id, decode }: { id: string; decode: Decode | undefined },
): Promise<SessionView | undefined> {
  const session = await store.getSession(id);
  if (!session) return undefined;
  const traces = await store.traces({ session_id: id, limit: MOST_CALLS });
  const byId = new Map(traces.map((trace) => [trace.trace_id, trace]));
  const views = traces.map((trace) => viewTrace(trace, { parent: byId.get(trace.parent_trace_id ?? ""), decode }));
  return { session: withoutKey(session), traces: views, rest: Math.max(0, session.trace_count - traces.length) };
}

function viewTrace(
  trace: TraceRecord,
  { parent, decode }: { parent: TraceRecord | undefined; decode: Decode | undefined },
): TraceView {
  const { prompt_token_ids: prompt, completion_token_ids: completion, logprobs } = trace;
  const shared = parent ? commonLength([...parent.prompt_token_ids, ...parent.completion_token_ids], prompt) : 0;
  const text = decode ?? ((id: number) => `⟨${id}⟩`);
  return {
    trace_id: trace.trace_id,
    model: trace.model,
    timestamp: trace.timestamp,
    latency_ms: trace.latency_ms,
    finish_reason: trace.finish_reason,
    weight_version: trace.weight_version,
    prompt_origin: trace.prompt_origin ?? null,
    parent_trace_id: trace.parent_trace_id ?? null,
    messages: trace.messages,
    response_message: trace.response_message,
    metadata: trace.metadata,
    timings: trace.timings ?? {},
    token_counts: trace.token_counts,
    shared,
    prompt: prompt.slice(shared).map((id) => ({ id, text: text(id) })),
    completion: completion.map((id, i) => ({ id, text: text(id), ...(logprobs && { logprob: logprobs[i]! }) })),
    isTrainable: logprobs !== null,
  };
}

function commonLength(tokens: readonly number[], other: readonly number[]): number {
  const most = Math.min(tokens.length, other.length);
  for (let i = 0; i < most; i++) if (tokens[i] !== other[i]) return i;
  return most;
}
