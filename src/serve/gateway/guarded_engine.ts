/** An engine whose failures say nothing of the gateway's inside. */
import type { ChatEngine } from "../../chat/engine.ts";
import { ApiError } from "../../chat/request.ts";
import { ConfigError, OutOfMemoryError, UnsupportedError } from "../../leaves/errors.ts";
import { Refusal } from "../../leaves/http/refusal.ts";
import { AccessRefusal } from "./auth.ts";
import type { RunningCalls } from "./running.ts";

export interface EngineGuardOptions {
  /** Its calls count as work: they go on for a while when their caller has left. */
  readonly calls: RunningCalls;
  /** Session of the calls. */
  readonly session?: string | undefined;
  /** Takes one line for the operator. */
  readonly log: (line: string) => void;
}

/**
 * The engine. Errors that a request causes pass; the message of any other, which may name files or devices, goes to the
 * operator, and the caller gets an id to ask with.
 */
export function guardedEngine(engine: ChatEngine, { calls, session, log }: EngineGuardOptions): ChatEngine {
  const guarded = <T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> =>
    calls.track(
      work.catch((error: unknown) => {
        throw signal?.aborted ? error : publicError(error, log);
      }),
      session,
    );
  return {
    ...engine,
    model: engine.model,
    tokenizer: engine.tokenizer,
    chat: (request, call) => guarded(engine.chat(request, call), call?.signal),
    ...(engine.chatLive && {
      chatLive: (request, listener) => guarded(engine.chatLive!(request, listener), listener.signal),
    }),
    complete: (request, call) => guarded(engine.complete(request, call), call?.signal),
  };
}

const PUBLIC = [ApiError, Refusal, AccessRefusal, UnsupportedError];

/** Returns whether an error is one of a request's content, not of the gateway's memory or files. */
function isRequests(error: unknown): error is ConfigError {
  return error instanceof ConfigError && !(error instanceof OutOfMemoryError) && error.file === undefined;
}

/** The error as a caller may see it. One that is not the request's fault is logged whole. */
export function publicError(error: unknown, log: (line: string) => void): Error {
  if (PUBLIC.some((kind) => error instanceof kind) || isRequests(error)) return error as Error;
  const id = crypto.randomUUID().slice(0, 8);
  log(`error ${id}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  return new ApiError(`Cannot answer: the gateway failed (error ${id}). Look for it in the gateway's log.`, {
    status: 500,
    type: "server_error",
    cause: error,
  });
}
