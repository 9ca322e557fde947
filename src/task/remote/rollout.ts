/** The rollout of an agent in another process: opens a session, asks the agent, waits for its report, judges. */
import type { FetchFunction } from "../../chat/endpoint.ts";
import type { Task } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import {
  type Completion,
  evaluationOf,
  type Policy,
  type Reward,
  type Rollout,
  type RolloutResult,
  Termination,
  textOf,
} from "../rollout.ts";
import { type Asked, readAnswer, readReport } from "./answer.ts";
import type { AgentReport, AgentRequest, OpenSession, SessionHost, TrajectoryKeys } from "./contract.ts";
import { type NamedTrajectory, type Roles, rolesOf } from "./roles.ts";

export interface RemoteAgentOptions {
  /** `task.agent`: attempts go to them in turn. */
  readonly urls: readonly string[];
  readonly sessions: SessionHost;
  /** Follows no redirect, has no time limit of its own. */
  readonly fetch: FetchFunction;
  /** Of trajectories whose calls name none. */
  readonly name: string;
  readonly keys: TrajectoryKeys;
  /** `rllm.agent`: part of every request. */
  readonly agent: Pick<AgentRequest, "agent_args" | "max_steps">;
  /** Judges the last reply where the agent reports no reward. */
  readonly reward?: Reward | undefined;
  /** An evaluator judges where the agent reports no reward. */
  readonly isJudgedLater: boolean;
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

/** Of a task's id: what URLs and file names take unchanged. */
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

async function attempt(it: RemoteAttempt): Promise<RolloutResult> {
  const { policy, task, sessions, run, asked } = it;
  const roles = rolesOf(policy, it);
  const { place, isValidation: is_validation, signal } = policy;
  signal.throwIfAborted();
  // Of calls that name no trajectory, for readers of the traces.
  const named = { [it.keys.name ?? "trajectory_name"]: it.name };
  const metadata = { run, task_id: task.id, ...place, is_validation, ...named };
  const session = await sessions.openSession({ session_id: asked.session_id, engine: roles.engine, metadata });
  // The key stops working at once, also when this attempt is no longer waited for.
  const stop = () => {
    roles.close();
    // Nobody waits for this attempt any more: where its outcome cannot be written, the session stays without one.
    session.end({ reward: null, termination_reason: reasonOf(signal.reason) }).catch(() => {});
  };
  signal.addEventListener("abort", stop);
  try {
    const report = await reportOf(session, it);
    roles.close();
    const { result, reward = null } = await judge(report, roles, it);
    const { metadata: _, ...known } = report;
    await session.end({ ...known, reward });
    return result;
  } catch (error) {
    roles.close();
    await session.end({ reward: null, termination_reason: reasonOf(error) });
    throw error;
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Termination ? error.reason : "error";
}

/** Asks the agent. Its callback ends the attempt as well as its answer: the first of the two counts. */
async function reportOf(session: OpenSession, it: RemoteAttempt): Promise<AgentReport> {
  const { policy, asked } = it;
  const calling = new AbortController();
  const stop = () => calling.abort(policy.signal.reason);
  policy.signal.addEventListener("abort", stop);
  const reported = session.reported.then((body) => readReport(body, asked));
  try {
    const answered = ask(session, it, calling.signal).then((answer) => answer ?? reported);
    return await Promise.race([reported, answered]);
  } finally {
    policy.signal.removeEventListener("abort", stop);
    calling.abort(new Error("The attempt has ended"));
  }
}

/** The report in the answer; undefined where the callback brings it. */
async function ask(session: OpenSession, it: RemoteAttempt, signal: AbortSignal): Promise<AgentReport | undefined> {
  const { asked, fetch } = it;
  const answer = async () => readAnswer(await post(session, it, signal), asked);
  const { isAccepted, location, report } = await reach(answer, { asked, signal });
  if (!isAccepted) return report;
  // Until the report comes: who stops waiting cancels.
  if (location !== undefined)
    it.policy.signal.addEventListener("abort", () => void fetch(location, { method: "DELETE" }).catch(() => {}), {
      once: true,
    });
  return session.poll && readReport(await session.poll(signal), asked);
}

function post(session: OpenSession, it: RemoteAttempt, signal: AbortSignal): Promise<Response> {
  const { task, policy, asked } = it;
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
    agent_args: it.agent.agent_args,
    max_steps: it.agent.max_steps,
    callback_url: session.callback_url,
  };
  const headers = { "content-type": "application/json", accept: "application/json" };
  return it.fetch(asked.url, { method: "POST", headers, body: JSON.stringify(body), redirect: "manual", signal });
}

/** Connections break off before an answer and within it. */
async function reach<T>(call: () => Promise<T>, it: { asked: Asked; signal: AbortSignal }): Promise<T> {
  const { asked, signal } = it;
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

interface Judged {
  readonly result: RolloutResult;
  /** Of all trajectories without one of their own. */
  readonly reward: number | undefined;
}

/** The reward of each trajectory: its own, that of all, or the judge's. */
async function judge(report: AgentReport, roles: Roles, it: RemoteAttempt): Promise<Judged> {
  const named = roles.trajectories();
  const { trajectory_rewards = {}, termination_reason, metadata } = report;
  checkTrajectories(named, trajectory_rewards, it.asked);
  const own = ({ label, name }: NamedTrajectory) => trajectory_rewards[label] ?? trajectory_rewards[name ?? ""];
  const isWhole = report.reward !== undefined || named.every((each) => own(each) !== undefined);
  const judged = isWhole ? undefined : await judgeLastReply(named, it);
  const reward = report.reward ?? judged?.reward;
  const is_correct = report.is_correct ?? judged?.is_correct ?? (reward === undefined ? undefined : reward > 0);
  const signals = (report.signals ?? judged?.signals) && { ...judged?.signals, ...report.signals };
  const trajectories = named.map((each) => {
    const { label: _, ...trajectory } = each;
    return { ...trajectory, reward: own(each) ?? reward ?? null, ...(signals && { signals }) };
  });
  const result = {
    trajectories,
    metrics: { ...judged?.metrics, ...report.metrics },
    ...(is_correct !== undefined && { is_correct }),
    ...(termination_reason && { termination_reason }),
    ...(metadata && { metadata }),
  };
  return { result, reward };
}

/** Undefined: an evaluator judges after the rollout. */
async function judgeLastReply(
  trajectories: readonly NamedTrajectory[],
  { reward, isJudgedLater, task, asked }: RemoteAttempt,
) {
  if (reward) return evaluationOf(await reward(textOf(lastStep(trajectories)), task));
  if (isJudgedLater) return undefined;
  throw new ConfigError(
    `Cannot judge the session ${asked.session_id}: the agent ${asked.url} reports no reward and nothing else judges it. Answer {"reward": NUMBER}, or set task.reward or task.evaluator.`,
    { kind: "code", path: "task.reward" },
  );
}

/** The agent's final reply: of the trajectory that was begun last. */
function lastStep(trajectories: readonly NamedTrajectory[]): Completion {
  return trajectories.at(-1)!.steps.at(-1) as Completion;
}

function checkTrajectories(
  trajectories: readonly NamedTrajectory[],
  rewards: object,
  { url, session_id }: Asked,
): void {
  const from = `the agent ${url} for the session ${session_id}`;
  if (trajectories.length === 0)
    throw new ConfigError(
      `Cannot train on what came from ${from}: it answered without a call to the model. Let it call base_url with api_key.`,
      { kind: "code" },
    );
  const known = new Set(trajectories.flatMap(({ label, name }) => [label, name ?? ""]));
  const other = Object.keys(rewards).find((label) => !known.has(label));
  if (other === undefined) return;
  throw new ConfigError(
    `Cannot use the reward of the trajectory ${other} from ${from}: there is no such trajectory. There are ${[...known].join(", ")}.`,
    { kind: "code" },
  );
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
    if (signal.aborted) end();
  });
}
