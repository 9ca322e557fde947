/** Turns a session and its traces into an attempt at a task: which task, which trajectories, what may be trained on. */

import type { SessionOutcome, SessionSummary, SessionTrajectory, TraceRecord } from "../../engine/contract/trace.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { Step, Task } from "../data/types.ts";

/** Metadata keys as `rllm.sdk.processing` names them; null: the keys that our own runs record. */
export interface AttemptKeys {
  /** `groupby_key`: sessions with the same value attempt the same task. */
  readonly group: string | null;
  /** `traj_name_key`: names the trajectory that a call belongs to. */
  readonly name: string | null;
}

/** The trajectory's name in metadata of traces, unless `traj_name_key` names another key. */
export const TRAJECTORY_NAME = "trajectory_name";

/** Metadata of a session that our runs record: together they tell the tasks of all runs and steps apart. */
const TASK_KEYS = ["run", "step", "task_index", "task_id"] as const;

/** One call, with what the loop infers the end of an episode from. */
export interface RecordedStep extends Step {
  readonly finish_reason: string | null;
}

/** One agent's calls in a session. */
export interface RecordedTrajectory {
  readonly name: string;
  readonly steps: readonly RecordedStep[];
  /** Null: an evaluator judges; where none does, the reward of the last step. */
  readonly reward: number | null;
  readonly signals?: Readonly<Record<string, number>> | undefined;
}

/** A session as one attempt at a task. */
export interface RecordedAttempt {
  readonly session_id: string;
  /** Equal for attempts that are compared with each other. */
  readonly group: string;
  /** Place in the run that recorded it; null where it is unknown. */
  readonly place: Readonly<Record<"step" | "task_index" | "rollout_index", number | null>>;
  /** Seconds since 1970. */
  readonly created_at: number;
  readonly task: Task;
  readonly trajectories: readonly RecordedTrajectory[];
  readonly outcome: SessionOutcome | undefined;
}

/** `finish_reason` of a reply whose caller went away: a run does not train on it, and no later call continues it. */
export const ABORTED = "abort";
/** `finish_reason` of a reply that its worker broke off. Its client got an error and usually asks again: trained on is the second reply. */
export const BROKEN_OFF = "error";

/** The calls that are trained on: those whose reply is whole, or that the recording run names as its steps. */
export function trainedCalls(traces: readonly TraceRecord[], outcome: SessionOutcome | undefined): TraceRecord[] {
  if (!outcome?.trajectories)
    return traces.filter(({ finish_reason }) => finish_reason !== ABORTED && finish_reason !== BROKEN_OFF);
  const named = new Set(namedCalls(outcome.trajectories));
  return traces.filter(({ trace_id }) => named.has(trace_id));
}

function namedCalls(trajectories: readonly SessionTrajectory[]): string[] {
  return trajectories.flatMap(({ calls }) => calls.map(({ trace_id }) => trace_id));
}

/** Reasons why a session cannot be trained on. */
export const SKIP_REASONS = {
  validation: "recorded in a validation",
  greedy: "recorded as a greedy baseline",
  no_calls: "without a call",
  no_token_ids: "with a call without token ids",
  no_logprobs: "with a call without one log-prob per token",
  lost_calls: "with a call that is not in the store",
  no_reward: "without a reward",
} as const;

/** One of {@link SKIP_REASONS}. */
export type SkipReason = keyof typeof SKIP_REASONS;

/** Treatment of sessions that have no reward. */
export interface AttemptOptions {
  readonly keys: AttemptKeys;
  /** Whether an evaluator judges sessions without a reward. Default false. */
  readonly isJudged?: boolean;
}

/** Returns the task that a session attempts, from its metadata; by that of its traces where it was not announced. */
export function groupOf(
  { session_id, metadata }: Pick<SessionSummary, "session_id" | "metadata">,
  { keys, traces = [] }: { keys: AttemptKeys; traces?: readonly TraceRecord[] },
): string {
  if (keys.group !== null) {
    // Within an announced session, the key of a call tells its trajectories apart, not its task.
    const isAnnounced = TASK_KEYS.some((key) => metadata[key] !== undefined);
    const value = metadata[keys.group] ?? (isAnnounced ? undefined : sharedValue(traces, keys.group));
    if (value !== undefined && value !== null) return text(value);
  }
  const taskKeys = TASK_KEYS.filter((key) => metadata[key] !== undefined).map((key) => text(metadata[key]));
  return taskKeys.length > 0 ? taskKeys.join("/") : taskOfId(session_id);
}

/** Returns the reason why the session cannot be trained on; undefined for one that can. */
export function whySkipped(
  { metadata, outcome }: SessionSummary,
  { traces: recorded, isJudged = false }: { traces: readonly TraceRecord[]; isJudged?: boolean },
): SkipReason | undefined {
  if (metadata.is_validation === true) return "validation";
  if (metadata.is_greedy === true) return "greedy";
  const traces = trainedCalls(recorded, outcome);
  if (traces.length === 0) return "no_calls";
  if (traces.length < new Set(namedCalls(outcome?.trajectories ?? [])).size) return "lost_calls";
  if (traces.some((each) => each.prompt_token_ids.length === 0 || each.completion_token_ids.length === 0))
    return "no_token_ids";
  if (traces.some((each) => each.logprobs?.length !== each.completion_token_ids.length)) return "no_logprobs";
  const hasReward =
    typeof outcome?.reward === "number" || (outcome?.trajectory_rewards ?? outcome?.trajectories) !== undefined;
  return hasReward || isJudged ? undefined : "no_reward";
}

/** The attempt that a session records. Calls are in the order of their start; those that broke off are left out. */
export function attemptOf(
  session: SessionSummary,
  { traces, keys }: { traces: readonly TraceRecord[]; keys: AttemptKeys },
): RecordedAttempt {
  const { session_id, metadata, created_at, outcome } = session;
  const calls = trainedCalls(traces, outcome).toSorted((a, b) => a.timestamp - b.timestamp);
  return {
    session_id,
    group: groupOf(session, { keys, traces }),
    place: {
      step: numberAt(metadata, "step"),
      task_index: numberAt(metadata, "task_index"),
      rollout_index: numberAt(metadata, "rollout_index"),
    },
    created_at,
    task: taskOf(session, { first: calls[0], keys, traces }),
    trajectories: outcome?.trajectories
      ? outcome.trajectories.map((each) => namedTrajectory(each, calls))
      : inferredTrajectories(calls, { session, keys }),
    outcome,
  };
}

function namedTrajectory(
  { calls, label: _, ...trajectory }: SessionTrajectory,
  traces: TraceRecord[],
): RecordedTrajectory {
  const byId = new Map(traces.map((trace) => [trace.trace_id, trace]));
  const steps = calls.map(({ trace_id, ...call }) => ({ ...stepOf(byId.get(trace_id)!), ...call }));
  return { ...trajectory, steps };
}

/** Returns trajectories by the metadata of calls, in the order of their first ones. */
function inferredTrajectories(
  calls: readonly TraceRecord[],
  context: { session: SessionSummary; keys: AttemptKeys },
): RecordedTrajectory[] {
  const found = new Map<string, { name: string; steps: RecordedStep[] }>();
  for (const call of calls) {
    const { name, label } = trajectoryOf(call, context);
    const trajectory = found.get(label);
    if (trajectory) trajectory.steps.push(stepOf(call));
    else found.set(label, { name, steps: [stepOf(call)] });
  }
  const { reward = null, trajectory_rewards = {} } = context.session.outcome ?? {};
  return Array.from(found, ([label, { name, steps }]) => ({
    name,
    steps,
    reward: trajectory_rewards[label] ?? trajectory_rewards[name] ?? reward,
  }));
}

/**
 * The name that a call gives itself; else the session's. A call names itself by `traj_name_key` or, as the header
 * `X-Trajectory` does, by `trajectory_name`.
 */
function nameOf(metadata: TraceRecord["metadata"], { session, keys }: { session: SessionSummary; keys: AttemptKeys }) {
  const names = [...(keys.name === null ? [] : [keys.name]), TRAJECTORY_NAME];
  const ownKey = names.find((key) => (metadata[key] ?? null) !== null && metadata[key] !== session.metadata[key]);
  return text(metadata[ownKey ?? keys.name ?? TRAJECTORY_NAME] ?? "");
}

/** Returns a call's trajectory by its name, and by the value of `groupby_key` where the calls of one session have several. */
function trajectoryOf(
  { metadata }: TraceRecord,
  { session, keys }: { session: SessionSummary; keys: AttemptKeys },
): { name: string; label: string } {
  const name = nameOf(metadata, { session, keys });
  const value = keys.group === null ? undefined : metadata[keys.group];
  const isOwn = value !== undefined && value !== null && value !== session.metadata[keys.group ?? ""];
  return { name, label: isOwn ? `${name}/${text(value)}` : name };
}

function stepOf(trace: TraceRecord): RecordedStep {
  const { content } = trace.response_message;
  return {
    prompt_ids: trace.prompt_token_ids,
    response_ids: trace.completion_token_ids,
    logprobs: trace.logprobs ?? [],
    chat_completions: [...trace.messages, trace.response_message as TraceRecord["messages"][number]],
    model_response: typeof content === "string" ? content : "",
    reward: 0,
    done: false,
    finish_reason: trace.finish_reason,
    ...(trace.weight_version !== null && { weight_version: trace.weight_version }),
  };
}

function taskOf(
  session: SessionSummary,
  { first, keys, traces }: { first: TraceRecord | undefined; keys: AttemptKeys; traces: readonly TraceRecord[] },
): Task {
  const { metadata } = session;
  const messages = first?.messages ?? [];
  const question = messages.findLast((message) => message.role === "user")?.content;
  return {
    id: metadata.task_id === undefined ? groupOf(session, { keys, traces }) : text(metadata.task_id),
    instruction: typeof question === "string" ? question : "",
    ...(messages.length > 0 && { messages }),
    metadata: isRecord(metadata.task) ? metadata.task : metadata,
  };
}

/** The one value that all traces have; undefined where they differ. */
function sharedValue(traces: readonly TraceRecord[], key: string): unknown {
  const [first, ...others] = traces.map((trace) => trace.metadata[key]);
  return others.every((value) => value === first) ? first : undefined;
}

/** rLLM names sessions `task:rollout:retry`. */
function taskOfId(sessionId: string): string {
  return /^(.+):\d+:\d+$/.exec(sessionId)?.[1] ?? /^(.+):\d+$/.exec(sessionId)?.[1] ?? sessionId;
}

function numberAt(metadata: SessionSummary["metadata"], key: string): number | null {
  const value = metadata[key];
  return typeof value === "number" ? value : null;
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string {
  return typeof value === "string" ? value : stringifyJson(value);
}
