/** Writes every sampled reply to a trace store: of served sessions, of a run's attempts, of workers behind the gateway. */

import type { ChatCall, ChatEngine } from "../../chat/engine.ts";
import type { ChatRequest, TextRequest } from "../../chat/request.ts";
import type { Drawn, DrawnChat } from "../../chat/response.ts";
import type { SessionRecord, TraceRecord, TraceStore } from "../../engine/contract/trace.ts";
import { SYSTEM_CLOCK } from "../../leaves/clock.ts";
import { mergedJson } from "../../leaves/json.ts";
import { ABORTED } from "../../train/trace/attempts.ts";
import { PartialReplies } from "./partial_replies.ts";

/** The session that calls belong to. Its metadata is read at each call, because a session may be created again. */
export interface CallSession {
  readonly session_id: string;
  /** Metadata of each trace; the request's own is added. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Gets the trace of each whole reply. */
  readonly onReply?: ((trace: TraceRecord) => void) | undefined;
}

export interface RecorderOptions {
  readonly store: TraceStore;
  /** Answers wait until their trace is stored. Default false: {@link CallRecorder.flush} waits. */
  readonly syncTraces?: boolean | undefined;
  /** Takes one line for the operator. */
  readonly log?: ((line: string) => void) | undefined;
  /** Approximate bytes that traces which are not stored yet may hold together. Default 256 MiB. */
  readonly mostBytes?: number | undefined;
}

/** Counts of traces by what became of them. */
export interface RecorderFigures {
  stored: number;
  /** Not yet stored. */
  pending: number;
  /** Given up after {@link TRIES}, or dropped because too much waited. */
  lost: number;
  /** Approximate bytes of pending traces. */
  bytes: number;
}

/** A store may be locked or its disk full for a while: about a minute in all. */
const TRIES = 12;
const FIRST_PAUSE_MS = 50;
const MOST_PAUSE_MS = 10_000;
/** How long the last traces are tried again when the gateway stops. */
const CLOSING_MS = 5000;

export class CallRecorder {
  readonly figures: RecorderFigures = { stored: 0, pending: 0, lost: 0, bytes: 0 };
  private readonly store: TraceStore;
  private readonly mostBytes: number;
  /** Number of traces dropped since the store last kept up. */
  private dropped = 0;
  private readonly isSync: boolean;
  private readonly log: (line: string) => void;
  private readonly closing = new AbortController();
  /** Running writes, with the session of the trace. */
  private readonly writing = new Map<Promise<void>, string>();

  constructor({ store, syncTraces = false, log = () => {}, mostBytes = 256 * 2 ** 20 }: RecorderOptions) {
    this.store = store;
    this.mostBytes = mostBytes;
    this.isSync = syncTraces;
    this.log = log;
  }

  /** The engine, with each of its replies recorded; one that a caller gave up is recorded with the tokens sampled so far. */
  wrap(engine: ChatEngine, session: CallSession): ChatEngine {
    return {
      ...engine,
      model: engine.model,
      tokenizer: engine.tokenizer,
      chat: (request, call) =>
        this.recorded((heard) => engine.chat(request, heard), { engine, session, request, call }),
      complete: (request, call) =>
        this.recorded((heard) => engine.complete(request, heard), { engine, session, request, call }),
    };
  }

  /**
   * Stores a trace. It resolves at once unless traces are synchronous, and never rejects: a failure is logged and tried again. A
   * trace that comes while too much waits for the store is dropped, logged and counted: a store that is down must not take the
   * memory of the process.
   */
  async put(trace: TraceRecord): Promise<void> {
    const bytes = memoryOf(trace);
    if (this.figures.pending > 0 && this.figures.bytes + bytes > this.mostBytes) return this.drop(trace);
    this.figures.pending++;
    this.figures.bytes += bytes;
    const written = this.write(trace).finally(() => {
      this.figures.pending--;
      this.figures.bytes -= bytes;
      this.writing.delete(written);
      if (this.dropped > 0 && this.figures.bytes < this.mostBytes / 2) this.caughtUp();
    });
    this.writing.set(written, trace.session_id);
    if (this.isSync) await written;
  }

  /** One line when it begins and one when it ends, however many there are. */
  private drop({ trace_id, session_id }: TraceRecord): void {
    this.figures.lost++;
    this.dropped++;
    if (this.dropped > 1) return;
    const waiting = `${this.figures.pending} traces of about ${mib(this.figures.bytes)} MiB wait for the store, at most ${mib(this.mostBytes)}`;
    this.log(`dropped the trace ${trace_id} of session ${session_id}: ${waiting}. Further ones are counted`);
  }

  private caughtUp(): void {
    this.log(`the store keeps up again; ${this.dropped} traces were dropped`);
    this.dropped = 0;
  }

  /** Resolves when the traces put before are stored, or given up. @param sessions default: of all */
  async settled(sessions?: ReadonlySet<string>): Promise<void> {
    const writes = [...this.writing].filter(([, session]) => sessions?.has(session) ?? true);
    await Promise.all(writes.map(([written]) => written));
  }

  /** Resolves when every trace so far is stored, or given up. */
  async flush(): Promise<void> {
    while (this.writing.size > 0) await this.settled();
    await this.store.flush();
  }

  /** Writes what is left. Where the store takes nothing, as on a full disk, it is given up after `mostMs`, each with a line. */
  async close(mostMs = CLOSING_MS): Promise<void> {
    const timer = setTimeout(() => this.closing.abort(), mostMs);
    await this.flush();
    clearTimeout(timer);
  }

  /**
   * Stores how a session ended, tried as often as a trace: an attempt that is done is not lost for a busy store.
   * @throws what the store throws in the end
   */
  putSession(session: SessionRecord): Promise<void> {
    return this.tried(() => this.store.putSession(session), `the session ${session.session_id}`);
  }

  private async write(trace: TraceRecord): Promise<void> {
    try {
      await this.tried(() => this.store.putTrace(trace), `the trace ${trace.trace_id} of session ${trace.session_id}`);
      this.figures.stored++;
    } catch {
      this.figures.lost++;
    }
  }

  private async tried(put: () => Promise<void>, name: string): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        return await put();
      } catch (error) {
        const what = `${name}: ${(error as Error).message}`;
        if (tries === 1) this.log(`could not store ${what}; it is tried again`);
        if (tries === TRIES || this.closing.signal.aborted) {
          this.log(`gave up storing ${what}`);
          throw error;
        }
        await pause(Math.min(FIRST_PAUSE_MS * 2 ** (tries - 1), MOST_PAUSE_MS), this.closing.signal);
      }
    }
  }

  private async recorded<T extends Drawn>(
    run: (call: ChatCall) => Promise<readonly T[]>,
    recorded: RecordedCall,
  ): Promise<readonly T[]> {
    const timestamp = Date.now() / 1000;
    const partial = new PartialReplies(recorded.call);
    try {
      const drawn = await run(partial.call);
      const at = { ...recorded, timestamp, latency_ms: partial.elapsedMs };
      for (const [i, reply] of drawn.entries()) {
        const trace = traceOf(reply, { ...at, first_token_ms: partial.firstTokenMs(i) });
        recorded.session.onReply?.(trace);
        await this.put(trace);
      }
      return drawn;
    } catch (error) {
      const at = { ...recorded, timestamp, latency_ms: partial.elapsedMs };
      if (recorded.call?.signal?.aborted)
        for (const { drawn, isWhole, first_token_ms } of partial.replies(recorded.engine.tokenizer)) {
          const trace = traceOf(drawn, { ...at, first_token_ms });
          if (isWhole) recorded.session.onReply?.(trace);
          await this.put(isWhole ? trace : { ...trace, finish_reason: ABORTED });
        }
      throw error;
    }
  }
}

interface RecordedCall {
  readonly engine: ChatEngine;
  readonly session: CallSession;
  readonly request: ChatRequest | TextRequest;
  readonly call?: ChatCall | undefined;
}

interface TimedCall extends RecordedCall {
  readonly timestamp: number;
  readonly latency_ms: number;
  readonly first_token_ms?: number | undefined;
}

function traceOf(drawn: Drawn | DrawnChat, call: TimedCall): TraceRecord {
  const { session, request, engine, first_token_ms } = call;
  const messages = "messages" in request ? request.messages : [];
  const tools = "tools" in request ? request.tools : undefined;
  return {
    trace_id: drawn.id ?? crypto.randomUUID(),
    session_id: session.session_id,
    model: engine.model,
    messages,
    prompt_token_ids: drawn.prompt_ids,
    response_message: "message" in drawn ? drawn.message : { role: "assistant", content: drawn.model_response },
    completion_token_ids: drawn.response_ids,
    logprobs: drawn.logprobs,
    finish_reason: finishOf(drawn),
    weight_version: drawn.weight_version ?? null,
    latency_ms: call.latency_ms,
    token_counts: { prompt: drawn.prompt_ids.length, completion: drawn.response_ids.length },
    timestamp: call.timestamp,
    metadata: mergedJson(session.metadata, request.metadata ?? {}),
    ...(drawn.sampling_params && { sampling_params: { ...drawn.sampling_params } }),
    raw_request: parametersOf(request),
    raw_response: null,
    ...(drawn.prompt_origin && { prompt_origin: drawn.prompt_origin }),
    parent_trace_id: drawn.parent ?? null,
    ...(tools && { tools }),
    ...(drawn.constrained && { constrained: drawn.constrained }),
    timings: first_token_ms === undefined ? {} : { first_token_ms },
  };
}

function finishOf(drawn: Drawn | DrawnChat): string {
  return "message" in drawn && drawn.message.tool_calls ? "tool_calls" : drawn.finish_reason;
}

/** Returns the parameters of a request besides its conversation, under the names of chat completions. */
function parametersOf(request: ChatRequest | TextRequest): Readonly<Record<string, unknown>> {
  const { params, stop, n, seed } = request;
  const { toolChoice, responseFormat, variables } = request as Partial<ChatRequest>;
  return {
    ...params,
    n,
    ...(stop.length > 0 && { stop }),
    ...(seed !== undefined && { seed }),
    ...(toolChoice && { tool_choice: toolChoice }),
    ...(responseFormat && { response_format: responseFormat }),
    ...(variables && { chat_template_kwargs: variables }),
  };
}

/** Bytes of a token: its id and log-prob. */
const BYTES_PER_TOKEN = 16;
/** Further bytes of a trace: objects, times, parameters. */
const BYTES_PER_TRACE = 2 * 2 ** 10;
const BYTES_PER_LETTER = 2;

/** Returns the approximate bytes that a trace holds while it waits. */
function memoryOf(trace: TraceRecord): number {
  const { prompt_token_ids, completion_token_ids, messages, response_message, tools, raw_request, raw_response } =
    trace;
  const tokens = prompt_token_ids.length + completion_token_ids.length;
  const letters = lettersIn([messages, response_message, tools, raw_request, raw_response, trace.metadata]);
  return BYTES_PER_TRACE + BYTES_PER_TOKEN * tokens + BYTES_PER_LETTER * letters;
}

/** Counts the letters of all texts of a value; any other leaf counts as eight. */
function lettersIn(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  return Object.entries(value).reduce((sum, [key, each]) => sum + key.length + lettersIn(each), 0);
}

function mib(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(1);
}

/** Shorter where the signal aborts. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return SYSTEM_CLOCK.sleep(ms, signal).catch(() => {});
}
