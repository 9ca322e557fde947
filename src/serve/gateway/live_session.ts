/** A session in memory: who answers it, which of its calls run, and about how much it holds. */

import type { ChatEngine, FetchFunction, ResponseStore } from "../../chat/endpoint.ts";
import type { SessionRecord, TraceRecord } from "../../engine/contract/trace.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { WorkerHistory } from "./workers/history.ts";

/** Parts that only some sessions have. */
export interface SessionParts {
  /** Digest of its own key; without one, agents' keys open it. */
  readonly key?: Uint8Array | undefined;
  /** Answers its calls, whatever model they name. */
  readonly engine?: ChatEngine | undefined;
  /** Takes the agent's report; absent where the store takes it. */
  readonly onReport?: ((body: unknown) => void) | undefined;
}

/**
 * Bytes of each token that a call adds to its parent's: its id in the tree of prompts and in the reply, and its text in
 * the tree of rendered prompts, the messages and their keys.
 */
const BYTES_PER_TOKEN = 40;
/** Further bytes of each call: objects, closures, listeners. */
const BYTES_PER_CALL = 8 * 2 ** 10;
/** Bytes of a letter of metadata. */
const BYTES_PER_LETTER = 2;

export type CountedCall = Pick<TraceRecord, "trace_id" | "parent_trace_id" | "token_counts">;

/** A session that calls can go to. */
export class LiveSession implements SessionParts {
  readonly key: Uint8Array | undefined;
  readonly engine: ChatEngine | undefined;
  readonly onReport: ((body: unknown) => void) | undefined;
  /** Its APIs on shared models, by name. They remember the session's calls. */
  readonly apis = new Map<string, Promise<FetchFunction>>();
  /** Aborts its running calls when it ends. */
  readonly ending = new AbortController();
  /** Responses of the responses API, whatever model gave them. */
  responses?: ResponseStore;
  /** Answers of the session's workers. */
  history?: Promise<WorkerHistory>;
  /** Calls that are being answered. */
  running = 0;
  /** Its run has ended it, whether or not the store has taken the outcome. */
  isEndedByRun = false;
  /** The write of the outcome. */
  written?: Promise<void> | undefined;
  /** The run has the agent's report. */
  isReported = false;
  private known: SessionRecord;
  /** Approximate bytes that the record and the calls hold in memory. */
  private recordBytes: number;
  private callBytes = 0;
  /** Tokens of each call that it remembers, prompt and reply, by the trace's id. */
  private readonly sizes = new Map<string, number>();

  constructor(record: SessionRecord, { key, engine, onReport }: SessionParts = {}) {
    this.known = record;
    this.recordBytes = memoryOf(record);
    this.key = key;
    this.engine = engine;
    this.onReport = onReport;
  }

  get id(): string {
    return this.known.session_id;
  }

  get record(): SessionRecord {
    return this.known;
  }

  set record(record: SessionRecord) {
    this.known = record;
    this.recordBytes = memoryOf(record);
  }

  /** Approximate bytes that it holds in memory. */
  get bytes(): number {
    return this.callBytes + this.recordBytes;
  }

  /** Counts what it remembers of a call. What the prompt has in common with its parent is held once. */
  count({ trace_id, parent_trace_id, token_counts }: CountedCall): void {
    const tokens = token_counts.prompt + token_counts.completion;
    const shared = this.sizes.get(parent_trace_id ?? "") ?? 0;
    this.sizes.set(trace_id, tokens);
    this.callBytes += BYTES_PER_CALL + BYTES_PER_TOKEN * (tokens - shared);
  }
}

/** Returns the approximate bytes that the record of a session holds besides its id. */
function memoryOf({ metadata, sampling_params = {} }: SessionRecord): number {
  const filled = [metadata, sampling_params].filter((each) => Object.keys(each).length > 0);
  return BYTES_PER_LETTER * filled.reduce((sum, each) => sum + stringifyJson(each).length, 0);
}
