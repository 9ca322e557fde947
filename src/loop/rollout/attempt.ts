/** One attempt at a task: the rollout, its deadline, its retries, and the episode that comes of it. */
import type { Episode, Step, TerminationReason, Trajectory } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import { STREAM_SEEDS } from "../../random.ts";
import {
  type Evaluation,
  evaluationOf,
  isResult,
  type Outcome,
  type RolloutResult,
  type RolloutTrajectory,
  Termination,
} from "../../task/rollout.ts";
import type { StageContext } from "../contract.ts";
import { samplingParams } from "../settings.ts";
import { type AttemptPolicy, createPolicy } from "./agent.ts";
import type { Attempt } from "./attempts_per_task.ts";
import type { DrawQueue } from "./draw_queue.ts";

/** What an attempt needs of a stage's context. */
export type AttemptContext = Pick<
  StageContext,
  | "backend"
  | "settings"
  | "rollout"
  | "evaluate"
  | "step"
  | "isValidation"
  | "signal"
  | "warn"
  | "failures"
  | "firstTask"
>;

export interface AttemptEnvironment {
  /** Shared by the attempts whose model calls are drawn together. */
  readonly draws: DrawQueue;
  /** Order of this attempt's model calls among those drawn with them. */
  readonly rank: number;
  readonly context: AttemptContext;
}

/**
 * One attempt, whatever its rollout does: an episode comes back. A rollout that throws is tried again up to
 * `workflow.retry_limit` times; then it fails the run or, with `workflow.raise_on_error` false, counts as an episode
 * without trajectories that ended in `error`. Its random numbers are a function of seed, step, task and rollout index.
 * @throws when the backend fails, the run is stopped, or as `raise_on_error` says.
 */
export async function runAttempt(attempt: Attempt, environment: AttemptEnvironment): Promise<Episode> {
  const { context, draws } = environment;
  const { retry_limit, raise_on_error } = context.settings.workflow;
  for (let trial = 0; ; trial++) {
    try {
      return await draws.during(() => tryOnce(attempt, trial, environment));
    } catch (error) {
      if (draws.failure !== undefined) throw draws.failure;
      context.signal.throwIfAborted();
      context.failures?.add(error, `${episodeId(attempt)} (try ${trial + 1} of ${retry_limit})`);
      if (trial + 1 < retry_limit) continue;
      if (raise_on_error) throw new Error(failureMessage(attempt, error), { cause: error });
      return toEpisode(attempt, { trajectories: [], termination_reason: "error", is_correct: false }, error);
    }
  }
}

async function tryOnce(attempt: Attempt, trial: number, environment: AttemptEnvironment): Promise<Episode> {
  const { settings, signal } = environment.context;
  const deadline = startDeadline(settings.workflow.workflow_args.timeout, signal);
  try {
    return await tryUntil(attempt, { ...environment, trial, deadline });
  } finally {
    deadline.stop();
  }
}

async function tryUntil(
  attempt: Attempt,
  {
    context,
    draws,
    rank,
    trial,
    deadline,
  }: AttemptEnvironment & { readonly trial: number; readonly deadline: Deadline },
): Promise<Episode> {
  const { settings, rollout, evaluate } = context;
  const seed = attemptSeed(attempt, trial, context);
  const own = createPolicy({ ...policyOptions(context), draws, rank, seed, signal: deadline.signal });
  const run = async () => {
    const outcome = await rollout(attempt.task, own.policy);
    // A rollout may have swallowed it.
    if (draws.failure !== undefined) throw draws.failure;
    if (outcome === undefined && !evaluate) throw new ConfigError(NO_REWARD, { kind: "code" });
    const result = resultOf(outcome, own);
    const episode = shaped(toEpisode(attempt, result), settings.workflow.workflow_args);
    return evaluate ? judged(episode, evaluationOf(await evaluate(attempt.task, episode))) : episode;
  };
  try {
    return await Promise.race([run(), deadline.passed]);
  } catch (error) {
    context.signal.throwIfAborted();
    const reason = error instanceof Termination ? error.reason : own.refused();
    if (reason === undefined || draws.failure !== undefined) throw error;
    // What was sampled until then counts, with the rewards that its steps were given.
    const result = { trajectories: own.trajectories(), termination_reason: reason };
    return shaped(toEpisode(attempt, result), settings.workflow.workflow_args);
  }
}

const NO_REWARD =
  "Cannot score the rollout as it returned nothing and no evaluator judges it: return a reward, or set task.evaluator";

/** Validation repeats its random numbers, in batches of any size, so that its scores differ by the weights alone. */
function attemptSeed(attempt: Attempt, trial: number, context: AttemptContext): number {
  const { settings, isValidation, step, firstTask = 0 } = context;
  const task = firstTask + attempt.task_index;
  const at = { step: isValidation ? 0 : step, task, rollout: attempt.rollout_index, trial };
  return STREAM_SEEDS.attempt(settings.training.seed, at);
}

function policyOptions({ settings, backend, isValidation, warn }: AttemptContext) {
  const phase = isValidation ? "val" : "train";
  return {
    backend,
    isValidation,
    warn,
    params: samplingParams(settings.rollout[phase], backend.model.eosTokenIds),
    maxPromptLength: settings.data.max_prompt_length,
    accumulateReasoning: settings.accumulate_reasoning,
    variables: settings.disable_thinking ? { enable_thinking: false } : {},
  };
}

/** An outcome as trajectories: a judgement is of everything that was recorded. */
function resultOf(outcome: Outcome, own: AttemptPolicy): RolloutResult {
  if (isResult(outcome)) return outcome;
  const trajectories = own.trajectories();
  if (outcome === undefined) return { trajectories: trajectories.map((each) => ({ ...each, reward: null })) };
  const { reward, is_correct, metrics, signals } = evaluationOf(outcome);
  return {
    trajectories: trajectories.map((each) => ({ ...each, reward, signals })),
    is_correct: is_correct ?? reward > 0,
    metrics,
  };
}

/** The episode with an evaluator's verdict: its reward where a trajectory has none, the rest beside what is there. */
function judged(episode: Episode, { reward, is_correct, metrics, signals }: Evaluation): Episode {
  return {
    ...episode,
    trajectories: episode.trajectories.map((trajectory) => ({
      ...trajectory,
      reward: trajectory.reward ?? reward,
      ...((signals || trajectory.signals) && { signals: { ...signals, ...trajectory.signals } }),
    })),
    is_correct: is_correct ?? reward > 0,
    metrics: { ...episode.metrics, ...metrics },
  };
}

/** The longest delay that timers can hold: a deadline beyond it is none. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

interface Deadline {
  readonly signal: AbortSignal;
  /** Rejects when the time is over or the run is stopped. */
  readonly passed: Promise<never>;
  stop(): void;
}

/** Ends what waits when the time is over or the run is stopped, whatever the rollout waits for. */
function startDeadline(seconds: number, outer: AbortSignal): Deadline {
  const own = new AbortController();
  const hasEnd = seconds * 1000 <= LONGEST_TIMER_MS;
  const timer = hasEnd ? setTimeout(() => own.abort(new Termination("timeout")), seconds * 1000) : undefined;
  const followers = followersOf(outer);
  followers.add(own);
  if (outer.aborted) own.abort(outer.reason);
  const { signal } = own;
  let stop = () => {};
  const passed = new Promise<never>((_, reject) => {
    const end = () => reject(signal.reason);
    signal.addEventListener("abort", end);
    if (signal.aborted) end();
    stop = () => {
      clearTimeout(timer);
      followers.delete(own);
      signal.removeEventListener("abort", end);
    };
  });
  return { signal, passed, stop };
}

/**
 * Controllers that abort with a signal, behind one listener of it. Hundreds of listeners would be taken for a leak, and
 * what `AbortSignal.any` leaves behind in a signal that lives as long as the run is one.
 */
const FOLLOWERS = new WeakMap<AbortSignal, Set<AbortController>>();

function followersOf(signal: AbortSignal): Set<AbortController> {
  const known = FOLLOWERS.get(signal);
  if (known) return known;
  const followers = new Set<AbortController>();
  signal.addEventListener("abort", () => {
    for (const follower of followers) follower.abort(signal.reason);
  });
  FOLLOWERS.set(signal, followers);
  return followers;
}

function toEpisode(attempt: Attempt, result: RolloutResult, error?: unknown): Episode {
  const id = episodeId(attempt);
  const trajectories = result.trajectories.map((trajectory, i) => toTrajectory(trajectory, `${id}/${i}`));
  const total = trajectories.reduce(
    (sum, { reward, steps }) => sum + (reward ?? steps.at(-1)?.reward ?? 0),
    0,
  );
  return {
    ...attempt,
    id,
    trajectories,
    termination_reason: result.termination_reason ?? inferReason(result),
    is_correct: result.is_correct ?? total > 0,
    metrics: result.metrics ?? {},
    metadata: error === undefined ? (result.metadata ?? {}) : { error: String(error) },
  };
}

function shaped(episode: Episode, shaping: Shaping): Episode {
  const shape = (trajectory: Trajectory) => ({
    ...trajectory,
    steps: shapeRewards(trajectory.steps, shaping),
  });
  return { ...episode, trajectories: episode.trajectories.map(shape) };
}

interface Shaping {
  readonly gamma: number;
  readonly reward_bonus_coeff: number;
}

/**
 * rLLM's adjustment of a trajectory of several steps: each step gains `reward_bonus_coeff` times the reward it added
 * to the one before, then each stands for its discounted return, when `gamma` is above 0.
 */
export function shapeRewards(
  steps: readonly Step[],
  { gamma, reward_bonus_coeff }: Shaping,
): readonly Step[] {
  if (steps.length < 2 || (gamma === 0 && reward_bonus_coeff === 0)) return steps;
  const rewards = steps.map(({ reward }, i) =>
    i === 0 ? reward : reward + reward_bonus_coeff * (reward - steps[i - 1]!.reward),
  );
  if (gamma > 0) for (let i = rewards.length - 2; i >= 0; i--) rewards[i]! += gamma * rewards[i + 1]!;
  return steps.map((step, i) => ({ ...step, reward: rewards[i]! }));
}

function toTrajectory(trajectory: RolloutTrajectory, uid: string): Trajectory {
  return { ...trajectory, uid, name: trajectory.name ?? "", reward: trajectory.reward ?? null };
}

function inferReason(result: RolloutResult): TerminationReason {
  const last = result.trajectories.at(-1)?.steps.at(-1) as { finish_reason?: string } | undefined;
  return last?.finish_reason === "length" ? "max_response_length_exceeded" : "env_done";
}

function episodeId({ task, rollout_index }: Attempt): string {
  return `${task.id}:${rollout_index}`;
}

function failureMessage(attempt: Attempt, error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return `Cannot finish the rollout ${episodeId(attempt)} as it failed: ${message}. With rllm.workflow.raise_on_error=false it is counted and left out.`;
}
