/** One attempt at a task: the rollout, its deadline, its retries, and the episode that comes of it. */
import { seedOf } from "../data/random.ts";
import type { Episode, Step, Task, TerminationReason, Trajectory } from "../data/types.ts";
import { type RolloutResult, type RolloutTrajectory, Termination } from "../task/rollout.ts";
import { createPolicy, type Sampler } from "./policy.ts";
import { samplingParams } from "./settings.ts";
import type { StageContext } from "./stages.ts";

export interface Attempt {
  readonly task: Task;
  /** Place of the task among those attempted together. */
  readonly task_index: number;
  readonly rollout_index: number;
}

/** What an attempt needs of a stage's context. */
export type AttemptContext = Pick<
  StageContext,
  "backend" | "settings" | "rollout" | "step" | "isValidation" | "signal"
>;

export interface AttemptEnvironment {
  /** Shared by the attempts whose model calls are drawn together. */
  readonly sampler: Sampler;
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
  const { context, sampler } = environment;
  const { retry_limit, raise_on_error } = context.settings.workflow;
  for (let trial = 0; ; trial++) {
    try {
      const result = await sampler.during(() => tryOnce(attempt, trial, environment));
      return toEpisode(attempt, result, context.settings.workflow.workflow_args);
    } catch (error) {
      if (sampler.failure !== undefined) throw sampler.failure;
      context.signal.throwIfAborted();
      if (error instanceof Termination) return emptyEpisode(attempt, error.reason);
      if (trial + 1 < retry_limit) continue;
      if (raise_on_error) throw new Error(failureMessage(attempt, error), { cause: error });
      return emptyEpisode(attempt, "error", error);
    }
  }
}

async function tryOnce(
  attempt: Attempt,
  trial: number,
  environment: AttemptEnvironment,
): Promise<RolloutResult> {
  const { context, sampler, rank } = environment;
  const { settings, backend, isValidation, step } = context;
  // Validation repeats its random numbers, so that its scores differ by the weights alone.
  const seeds = [
    settings.training.seed,
    isValidation ? 0 : step,
    attempt.task_index,
    attempt.rollout_index,
    trial,
  ];
  const deadline = startDeadline(settings.workflow.workflow_args.timeout, context.signal);
  const policy = createPolicy({
    sampler,
    backend,
    params: samplingParams(settings.rollout[isValidation ? "val" : "train"], backend.model.eosTokenIds),
    maxPromptLength: settings.data.max_prompt_length,
    isValidation,
    signal: deadline.signal,
    seed: seedOf(...seeds),
    rank,
  });
  try {
    return await Promise.race([context.rollout(attempt.task, policy), deadline.passed]);
  } finally {
    deadline.stop();
  }
}

/** The longest delay that timers can hold: a deadline beyond it is none. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

function startDeadline(seconds: number, outer: AbortSignal) {
  const own = new AbortController();
  const hasEnd = seconds * 1000 <= LONGEST_TIMER_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const passed = new Promise<never>((_, reject) => {
    if (!hasEnd) return;
    timer = setTimeout(() => {
      own.abort();
      reject(new Termination("timeout"));
    }, seconds * 1000);
  });
  const signal = hasEnd ? AbortSignal.any([outer, own.signal]) : outer;
  return { signal, passed, stop: () => clearTimeout(timer) };
}

function toEpisode(attempt: Attempt, result: RolloutResult, shaping: Shaping): Episode {
  const id = episodeId(attempt);
  const trajectories = result.trajectories.map((trajectory, i) => ({
    ...toTrajectory(trajectory, `${id}/${i}`),
    steps: shapeRewards(trajectory.steps, shaping),
  }));
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
    metadata: result.metadata ?? {},
  };
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
    i === 0 ? reward : reward + reward_bonus_coeff * (reward - steps[i - 1].reward),
  );
  if (gamma > 0) for (let i = rewards.length - 2; i >= 0; i--) rewards[i] += gamma * rewards[i + 1];
  return steps.map((step, i) => ({ ...step, reward: rewards[i] }));
}

function toTrajectory(trajectory: RolloutTrajectory, uid: string): Trajectory {
  return { ...trajectory, uid, name: trajectory.name ?? "", reward: trajectory.reward ?? null };
}

function inferReason(result: RolloutResult): TerminationReason {
  const last = result.trajectories.at(-1)?.steps.at(-1) as { finish_reason?: string } | undefined;
  return last?.finish_reason === "length" ? "max_response_length_exceeded" : "env_done";
}

function emptyEpisode(attempt: Attempt, termination_reason: TerminationReason, error?: unknown): Episode {
  const metadata = error === undefined ? {} : { error: String(error) };
  const id = episodeId(attempt);
  return { ...attempt, id, termination_reason, is_correct: false, trajectories: [], metrics: {}, metadata };
}

function episodeId({ task, rollout_index }: Attempt): string {
  return `${task.id}:${rollout_index}`;
}

function failureMessage(attempt: Attempt, error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return `Cannot finish the rollout ${episodeId(attempt)} as it failed: ${message}. With rllm.workflow.raise_on_error=false it is counted and left out.`;
}
