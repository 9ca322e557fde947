/**
 * The record of agents' model calls: traces, the sessions that they belong to, and the store that keeps both. Field names are
 * those of rLLM's model gateway, so that its clients and its databases fit.
 */
import type { Constrained } from "./backend.ts";
import type { ChatMessage } from "./text.ts";

/** How the prompt's tokens were made from the messages. */
export type PromptOrigin =
  /** The first prompt of a conversation, or one that shares no reply with an earlier call. */
  | "rendered"
  /** Starts with the exact tokens of `parent_trace_id`: prompt and reply. */
  | "continued"
  /** Contains sampled tokens of earlier replies, but the template rewrote what stands before them. */
  | "spliced"
  /** Earlier replies were known, but the template or the caller changed them: rendered from text. */
  | "diverged"
  /** The caller sent token ids. */
  | "tokens";

/** One sampled reply. A request with n > 1 leaves n traces. */
export interface TraceRecord {
  readonly trace_id: string;
  readonly session_id: string;
  readonly model: string;
  /** The conversation as sent. Empty for a completion of plain text. */
  readonly messages: readonly ChatMessage[];
  readonly prompt_token_ids: readonly number[];
  /** `{role: "assistant", content, tool_calls?, reasoning_content?}`. */
  readonly response_message: Readonly<Record<string, unknown>>;
  readonly completion_token_ids: readonly number[];
  /** One per completion token. Null where a worker returned none: such a trace cannot be trained on. */
  readonly logprobs: readonly number[] | null;
  readonly finish_reason: string | null;
  /** Optimiser steps in the weights that sampled it. */
  readonly weight_version: number | null;
  readonly latency_ms: number;
  readonly token_counts: { readonly prompt: number; readonly completion: number };
  /** Seconds since 1970, at the start of the call. */
  readonly timestamp: number;
  /** Metadata of the session and of the request; `processing.groupby_key` and `traj_name_key` are looked up here. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Sampling parameters of the reply, defaults included. Absent where the worker that sampled it reports only its answer. */
  readonly sampling_params?: Readonly<Record<string, unknown>> | undefined;
  readonly raw_request?: Readonly<Record<string, unknown>> | null;
  readonly raw_response?: Readonly<Record<string, unknown>> | null;
  readonly prompt_origin?: PromptOrigin;
  /** The call whose prompt and reply this prompt starts with. */
  readonly parent_trace_id?: string | null;
  /** Tools offered to the model. */
  readonly tools?: readonly unknown[];
  /** Present where masks limited tokens of the reply, or where the grammar of a tool was given up in it. */
  readonly constrained?: Constrained;
  /** Waiting for the sampler, and until the first token, ms. */
  readonly timings?: { readonly queue_ms?: number; readonly first_token_ms?: number };
}

/** One attempt of an agent: its calls share the id. */
export interface SessionRecord {
  readonly session_id: string;
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Seconds since 1970. */
  readonly created_at: number;
  /** Overwrite those of each request. */
  readonly sampling_params?: Readonly<Record<string, unknown>>;
  /** SHA-256 of the session's own key, in hexadecimal digits. Absent: agents' keys open the session. */
  readonly key_digest?: string;
  /** Set when the agent, an evaluator or a file reports it. */
  readonly outcome?: SessionOutcome;
}

/** How a session ended. */
export interface SessionOutcome {
  /** Null: it ended without a reward (an error, a time-out). */
  readonly reward: number | null;
  readonly is_correct?: boolean;
  readonly termination_reason?: string;
  readonly metrics?: Readonly<Record<string, number>>;
  readonly signals?: Readonly<Record<string, number>>;
  /** Rewards of single trajectories, by label or by name; they take precedence over `reward`. */
  readonly trajectory_rewards?: Readonly<Record<string, number>>;
  /** Trajectories that a run trains on, where a run recorded the session. Absent: calls form trajectories by their metadata. */
  readonly trajectories?: readonly SessionTrajectory[];
  /** The agent's report as it was posted, where it has fields beside these. */
  readonly report?: Readonly<Record<string, unknown>>;
  /** Seconds since 1970. */
  readonly ended_at: number;
}

/** One agent's part of a session, in the order in which its run trains on it. */
export interface SessionTrajectory {
  readonly name: string;
  /** Its key in `trajectory_rewards`: the name, or `name/i` where several trajectories have it. */
  readonly label: string;
  /** Null: the reward of the last call. */
  readonly reward: number | null;
  readonly signals?: Readonly<Record<string, number>> | undefined;
  readonly calls: readonly SessionCall[];
}

/** A step of a trajectory: a trace, and what the rollout made of it. */
export interface SessionCall {
  readonly trace_id: string;
  /** Before it is shaped by `workflow_args`. */
  readonly reward: number;
  /** See `Step.advantage`. */
  readonly advantage?: number | readonly number[] | undefined;
}

/** A session in a listing. */
export interface SessionSummary extends SessionRecord {
  readonly trace_count: number;
  /** Times of its first and last trace; null without one. */
  readonly first_at: number | null;
  readonly last_at: number | null;
}

/** Conditions on traces or sessions: all of them hold together. */
export interface TraceQuery {
  readonly session_id?: string | undefined;
  readonly trace_ids?: readonly string[] | undefined;
  /** Not before, seconds since 1970. */
  readonly since?: number | undefined;
  readonly limit?: number | undefined;
}

/** Keeps traces. A call that resolved survives the end of the process, where the store is a file. */
export interface TraceStore {
  /** Inserts or replaces by `trace_id`; the first insertion's time stays. */
  putTrace(trace: TraceRecord): Promise<void>;
  getTrace(traceId: string): Promise<TraceRecord | undefined>;
  /** Oldest first. */
  traces(query: TraceQuery): Promise<readonly TraceRecord[]>;
  /** Creates the session, or replaces its metadata, parameters and outcome. */
  putSession(session: SessionRecord): Promise<void>;
  getSession(sessionId: string): Promise<SessionSummary | undefined>;
  /** Newest first. */
  sessions(query: Pick<TraceQuery, "since" | "limit">): Promise<readonly SessionSummary[]>;
  /** Deletes sessions with those of their traces that no other session shares. @returns the number of traces deleted */
  deleteSessions(sessionIds: readonly string[]): Promise<number>;
  /** Resolves when everything put so far is durable. */
  flush(): Promise<void>;
  close(): Promise<void>;
}
