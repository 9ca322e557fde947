/**
 * Rewards and agents for the workers of a cluster, over HTTP: the cluster samples and trains, this process judges, plays and
 * keeps the conversations. The protocol is in docs/service.md.
 */
import { ConfigError } from "../../leaves/errors.ts";
import { listen, type SocketLimits } from "../../leaves/http/listen.ts";
import { RolloutFailures } from "../../train/loop/rollout/failures.ts";
import { Answers } from "./answers.ts";
import { createServiceApp, type ServiceParts } from "./app.ts";
import { ServiceFigures, type ServiceStats } from "./figures.ts";
import { ServiceJudge } from "./judge.ts";
import {
  SERVICE_LIMITS,
  SERVICE_TIMEOUTS,
  type ServiceFailure,
  type ServiceOptions,
  type ServiceTimeouts,
} from "./options.ts";
import { OpenRollouts } from "./rollouts.ts";

export type { FailureKind, RolloutEnd, ServiceStats } from "./figures.ts";
export type {
  EpisodePlace,
  ServedRun,
  ServiceFailure,
  ServiceLimits,
  ServiceOptions,
  ServiceTimeouts,
} from "./options.ts";
export { PROTOCOL_VERSION } from "./protocol.ts";

/** A service that listens. */
export interface Service {
  /** `http://127.0.0.1:8300`. */
  readonly url: string;
  stats(): ServiceStats;
  /** Calls the listener with each judgement and rollout that fails, once its tries are used up. */
  onFailure(listener: (failure: ServiceFailure) => void): void;
  /**
   * Refuses new requests, gives up the open rollouts, lets judgements that run finish for at most `graceMs` (default 0) and
   * closes the socket.
   */
  close(options?: { readonly graceMs?: number }): Promise<void>;
}

/** The shortest token that is accepted. */
const TOKEN_LENGTH = 16;
/** How long the last answers may take to leave the socket, ms. */
const LAST_BYTES_MS = 1000;

/** A cluster sends all rollouts of a step at once, each over a connection of its own. */
const SERVICE_SOCKET: Partial<SocketLimits> = { connections: 20_000 };

/**
 * Starts a service.
 * @throws {ConfigError} for a token that protects nothing, a port that is taken, an address that this machine lacks
 */
export async function openService(options: ServiceOptions): Promise<Service> {
  const { host = "127.0.0.1", port = 0, socket } = options;
  if (options.token.length < TOKEN_LENGTH)
    throw new ConfigError(
      `Cannot start the service: its token must have at least ${TOKEN_LENGTH} characters (${options.token.length}). Choose a random one.`,
    );
  const stopping = new AbortController();
  const parts = partsOf({ ...options, host }, stopping.signal);
  const { rollouts, answers, figures } = parts;
  const search = setInterval(() => {
    rollouts.expire();
    answers.expire();
  }, 1000 * parts.timeouts.search);
  try {
    const listening = await listen(createServiceApp(parts), { host, port, limits: { ...SERVICE_SOCKET, ...socket } });
    return {
      url: listening.url,
      stats: parts.stats,
      onFailure: (listener) => figures.onFailure(listener),
      async close({ graceMs = 0 } = {}) {
        clearInterval(search);
        const timer = setTimeout(() => stopping.abort(closing()), graceMs);
        if (graceMs === 0) stopping.abort(closing());
        parts.refuse();
        await rollouts.close();
        await parts.judge.idle();
        clearTimeout(timer);
        await listening.close({ graceMs: LAST_BYTES_MS });
      },
    };
  } catch (error) {
    clearInterval(search);
    throw error;
  }
}

function closing(): Error {
  return new Error("Cannot finish the judgement: the service is closing.");
}

function partsOf(
  options: ServiceOptions & { readonly host: string },
  signal: AbortSignal,
): ServiceParts & { readonly refuse: () => void; readonly timeouts: ServiceTimeouts } {
  const { token, host, isSingleTurn, run = crypto.randomUUID(), warn = () => {} } = options;
  const limits = { ...SERVICE_LIMITS, ...options.limits };
  const timeouts = { ...SERVICE_TIMEOUTS, ...options.timeouts };
  const figures = new ServiceFigures();
  const answers = new Answers({ bytes: limits.answerBytes, keepMs: 1000 * timeouts.answers });
  const parts = { ...options, warn, failures: figures.triesInto(new RolloutFailures(warn)) };
  const rollouts = new OpenRollouts({ parts, figures, answers, limits, timeouts });
  let isClosing = false;
  return {
    ...{ run, token, host, limits, timeouts, isSingleTurn, rollouts, answers, figures, warn },
    judge: new ServiceJudge({ parts, figures, signal }),
    isClosing: () => isClosing,
    refuse: () => {
      isClosing = true;
    },
    stats: () => ({
      judgements: { ...figures.judgements },
      rollouts: { open: rollouts.count, started: figures.started, ...figures.ends },
      calls: figures.calls,
      tokens: figures.tokens,
      cut_tokens: figures.cutTokens,
      repeats: answers.repeats,
      answer_bytes: answers.bytes,
      failed_tries: figures.failedTries,
      failures: figures.failures,
    }),
  };
}
