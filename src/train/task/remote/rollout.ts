/** The rollout of an agent in another process: opens a session, asks the agent, waits for its report, judges. */

import type { FetchFunction } from "../../../chat/endpoint.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import type { Task } from "../../data/types.ts";
import type { Policy, Rollout, RolloutResult } from "../rollout.ts";
import { outcomeOf } from "../session_outcome.ts";
import { ALIVE_TIMES, type AliveTimes, untilGone } from "./alive.ts";
import { type Asked, type RemoteAnswer, readAnswer, readReport } from "./answer.ts";
import type { AgentReport, AgentRequest, RemoteSession, SessionHost, TrajectoryKeys } from "./contract.ts";
import { type JudgedAttempt, judgeSession } from "./judge.ts";
import { rolesOf } from "./roles.ts";

export interface RemoteAgentOptions extends Pick<JudgedAttempt, "reward" | "isJudgedLater"> {
  /** `task.agent`: attempts go to them in turn. */
  readonly urls: readonly string[];
  readonly sessions: SessionHost;
  /** Follows no redirect, has no time limit of its own. */
  readonly fetch: FetchFunction;
  /** Name of trajectories whose calls name none. */
  readonly name: string;
  readonly keys: TrajectoryKeys;
  /** `rllm.agent`: part of every request. */
  readonly agent: Pick<AgentRequest, "agent_args" | "max_steps">;
  /** When an agent that answered 202 is looked for. Default: every 10 s. */
  readonly times?: AliveTimes | undefined;
}

/** How long a retry waits at first, ms; doubled for each further one. An agent that restarts needs a moment. */
const RETRY_MS = 250;
const MOST_RETRY_MS = 5000;

/** A rollout that asks agents by HTTP; see contract.ts for what passes between the two. */
export function remoteAgent(options: RemoteAgentOptions): Rollout {
  // Distinguishes sessions of equal tasks, and of other runs in the same trace store.
  const run = crypto.randomUUID().slice(0, 8);
  let attempts = 0;
  return async (task, policy) => {
    const number = attempts++;
    const url = options.urls[number % options.urls.length]!;
    const { trial, rollout_index } = policy.place;
    if (trial > 0) await pause(Math.min(RETRY_MS * 2 ** (trial - 1), MOST_RETRY_MS), policy.signal);
    const session_id = `${slug(task.id)}:${rollout_index}:${trial}-${run}-${number}`;
    return attempt({ ...options, task, policy, run, asked: { url, session_id } });
  };
}

/** Returns a task's id in characters that URLs and file names take unchanged. */
function slug(id: string): string {
  return id.replace(/[^\w.-]+/g, "_").slice(0, 64);
}

interface RemoteAttempt extends RemoteAgentOptions {
  readonly task: Task;
  readonly policy: Policy;
  /** Tells the sessions of this run from those of others in the same trace store. */
  readonly run: string;
  readonly asked: Asked;
}

async function attempt(remote: RemoteAttempt): Promise<RolloutResult> {
  const { policy, task, sessions, run, asked } = remote;
  const roles = rolesOf(policy, remote);
  const { place, isValidation: is_validation, signal } = policy;
  signal.throwIfAborted();
  // Of calls that name no trajectory, for readers of the traces.
  const named = { [remote.keys.name ?? "trajectory_name"]: remote.name };
  const metadata = { run, task_id: task.id, ...place, is_validation, ...named };
  const session = await sessions.openSession({ session_id: asked.session_id, engine: roles.engine, metadata });
  // With the judgement of an evaluator; with what was asked until the attempt ran out of time.
  policy.onEnd((end) => session.end(outcomeOf(end, roles)));
  try {
    // The run may have stopped while the session was opened.
    signal.throwIfAborted();
    const report = await reportOf(session, remote);
    roles.close();
    return await judgeSession(report, roles.trajectories(), remote);
  } finally {
    // Further calls are refused, also where this attempt is no longer waited for.
    roles.close();
  }
}

/** Asks the agent. Its callback ends the attempt as well as its answer: the first of the two counts. */
async function reportOf(session: RemoteSession, remote: RemoteAttempt): Promise<AgentReport> {
  const { policy, asked } = remote;
  const calling = new AbortController();
  const reported = session.reported.then((body) => readReport(body, asked));
  let location: string | undefined;
  const answered = async () => {
    const answer = await ask(session, remote, calling.signal);
    if (!answer.isAccepted) return answer.report;
    location = answer.location;
    const { fetch, times = ALIVE_TIMES } = remote;
    const gone = untilGone({ asked, location, fetch, times, signal: calling.signal });
    const polled = async () => readReport(await session.poll!(calling.signal), asked);
    return Promise.race([session.poll ? polled() : reported, gone]);
  };
  try {
    return await Promise.race([rejection(policy.signal), reported, answered()]);
  } catch (error) {
    if (location !== undefined) cancel(location, remote.fetch);
    throw error;
  } finally {
    calling.abort(new Error("The attempt has ended"));
  }
}

/** Rejects with the reason of a signal, which lives as long as the attempt, when it aborts. */
function rejection(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

async function ask(session: RemoteSession, remote: RemoteAttempt, signal: AbortSignal): Promise<RemoteAnswer> {
  const { asked } = remote;
  return reach(async () => readAnswer(await post(session, remote, signal), asked), { asked, signal });
}

/** How long a run that ends waits for an agent's server to take a cancellation, ms. */
const CANCEL_MS = 5000;

/** Asks an agent's server to give up what it accepted. Its calls are refused already, so that a refusal changes nothing. */
function cancel(location: string, fetch: FetchFunction): void {
  fetch(location, { method: "DELETE", signal: AbortSignal.timeout(CANCEL_MS) })
    .then((response) => response.body?.cancel())
    .catch(() => {});
}

function post(session: RemoteSession, remote: RemoteAttempt, signal: AbortSignal): Promise<Response> {
  const { task, policy, asked } = remote;
  const { rollout_index, weight_version } = policy.place;
  const body: AgentRequest = {
    task,
    session_id: asked.session_id,
    base_url: session.base_url,
    api_key: session.api_key,
    model: policy.model,
    is_validation: policy.isValidation,
    rollout_index,
    weight_version,
    agent_args: remote.agent.agent_args,
    max_steps: remote.agent.max_steps,
    callback_url: session.callback_url,
  };
  const headers = { "content-type": "application/json", accept: "application/json" };
  const text = requestText(body, asked);
  return remote.fetch(asked.url, { method: "POST", headers, body: text, redirect: "manual", signal });
}

/** @throws {ConfigError} for a task that JSON cannot hold, which is no fault of the agent */
function requestText(body: AgentRequest, { url }: Asked): string {
  try {
    return stringifyJson(body);
  } catch (cause) {
    const [what] = (cause as Error).message.split("\n");
    throw new ConfigError(
      `Cannot send the task ${body.task.id} to the agent ${url}: JSON cannot hold it (${what}). Give numbers, texts, lists and objects alone.`,
      { kind: "code" },
      { cause },
    );
  }
}

/** Connections break off before an answer and within it. */
async function reach<T>(call: () => Promise<T>, request: { asked: Asked; signal: AbortSignal }): Promise<T> {
  const { asked, signal } = request;
  try {
    return await call();
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof ConfigError) throw cause;
    throw new ConfigError(
      `Cannot ask the agent ${asked.url} for the session ${asked.session_id}: ${causeOf(cause)}. Start the agent, or correct task.agent.`,
      { kind: "code" },
      { cause },
    );
  }
}

/** `fetch` hides why a connection failed in the cause of its error. */
function causeOf(error: unknown): string {
  const inner = error instanceof Error ? (error.cause ?? error) : error;
  const code = inner instanceof Error && "code" in inner ? `${String(inner.code)}: ` : "";
  return `${code}${inner instanceof Error ? inner.message : String(inner)}`;
}

/** Ends earlier where the signal, which lives as long as the attempt, aborts: the caller looks. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
