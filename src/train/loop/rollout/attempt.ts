/** One attempt at a task: its rollout, its deadline and its retries. */

import { ConfigError } from "../../../leaves/errors.ts";
import { STREAM_SEEDS } from "../../../leaves/random.ts";
import type { Episode } from "../../data/types.ts";
import { evaluationOf, type RolloutResult, type RolloutTrajectory, Termination } from "../../task/rollout.ts";
import type { StageContext } from "../contract.ts";
import { componentKeys } from "../roles.ts";
import { type LoopSettings, samplingParams } from "../settings.ts";
import { type AttemptPolicy, createPolicy, GREEDY, type PolicyOptions, type SampledModel } from "./agent.ts";
import type { Attempt } from "./attempts_per_task.ts";
import { type Deadline, startDeadline } from "./deadline.ts";
import type { Draws } from "./draw_queue.ts";
import { episodeId, failedEpisode, judged, resultOf, toEpisode } from "./episode.ts";

/** The parts of a stage's context that an attempt uses. */
export interface AttemptContext
  extends Pick<
    StageContext,
    | "settings"
    | "rollout"
    | "evaluate"
    | "rewardModel"
    | "step"
    | "isValidation"
    | "signal"
    | "warn"
    | "failures"
    | "firstTask"
  > {
  readonly backend: SampledModel;
}

export interface AttemptEnvironment {
  /** Shared by the attempts whose model calls are sampled together. */
  readonly draws: Draws;
  /** Orders this attempt's model calls among those. */
  readonly rank: number;
  readonly context: AttemptContext;
}

/**
 * Attempts a task. A rollout that throws is repeated up to `workflow.retry_limit` times in all; then it fails the run or,
 * with `workflow.raise_on_error` false, counts as an episode without trajectories that ended in `error`. Its random
 * numbers are a function of seed, step, task and rollout index.
 * @throws when the backend fails, when the run is stopped, and as `raise_on_error` says
 */
export async function runAttempt(attempt: Attempt, environment: AttemptEnvironment): Promise<Episode> {
  const { context, draws } = environment;
  const { retry_limit, raise_on_error } = context.settings.workflow;
  for (let trial = 0; ; trial++) {
    const [result] = await Promise.allSettled([draws.during(() => tryOnce(attempt, trial, environment))]);
    // Whatever the rollout made of the backend's failure, which it may have caught.
    if (draws.failure !== undefined) throw draws.failure;
    if (result.status === "fulfilled") return result.value;
    const error: unknown = result.reason;
    context.signal.throwIfAborted();
    context.failures?.add(error, `${episodeId(attempt)} (try ${trial + 1} of ${retry_limit})`);
    if (trial + 1 < retry_limit) continue;
    if (raise_on_error) throw new Error(failureMessage(attempt, error), { cause: error });
    return failedEpisode(attempt, error);
  }
}

async function tryOnce(attempt: Attempt, trial: number, environment: AttemptEnvironment): Promise<Episode> {
  const { settings, signal } = environment.context;
  const deadline = startDeadline(settings.workflow.workflow_args.timeout, signal);
  try {
    return await tryUntil(deadline, { ...environment, attempt, trial });
  } finally {
    deadline.stop();
  }
}

interface Trial extends AttemptEnvironment {
  readonly attempt: Attempt;
  readonly trial: number;
}

async function tryUntil(deadline: Deadline, trial: Trial): Promise<Episode> {
  const policy = createPolicy(policyOptions(trial, deadline.signal));
  const ended = await scored(policy, deadline, trial).catch(async (error: unknown) => {
    // Why it failed says more than that its record failed as well.
    await policy.end({ error }).catch(() => {});
    throw error;
  });
  const { episode, result } = ended;
  const { is_correct, termination_reason } = episode;
  await policy.end({ result: { ...result, is_correct, termination_reason } });
  return episode;
}

/** An episode, and the result that it was made from. */
interface Scored {
  readonly episode: Episode;
  readonly result: RolloutResult;
}

async function scored(attemptPolicy: AttemptPolicy, deadline: Deadline, { attempt, context }: Trial): Promise<Scored> {
  const { rollout, evaluate, rewardModel } = context;
  const { policy, trajectories, refused } = attemptPolicy;
  const shaping = context.settings.workflow.workflow_args;
  const run = async (): Promise<Scored> => {
    const outcome = await rollout(attempt.task, policy);
    if (outcome === undefined && !evaluate && !rewardModel) throw new ConfigError(NO_REWARD, { kind: "code" });
    const rolloutResult = resultOf(outcome, trajectories);
    const result = (await rewardModel?.judge(rolloutResult)) ?? rolloutResult;
    const episode = toEpisode(attempt, result, shaping);
    if (!evaluate) return { episode, result };
    const evaluation = evaluationOf(await evaluate(attempt.task, episode));
    return { episode: judged(episode, evaluation), result: judged(result, evaluation) };
  };
  try {
    return await Promise.race([run(), deadline.passed]);
  } catch (error) {
    context.signal.throwIfAborted();
    const termination_reason = error instanceof Termination ? error.reason : refused();
    if (termination_reason === undefined) throw error;
    // The calls until then count, with the rewards of their steps.
    const signals = unjudged(context);
    const result = { trajectories: trajectories().map((each) => ({ ...each, ...signals })), termination_reason };
    return { episode: toEpisode(attempt, result, shaping), result };
  }
}

/** The components of an attempt that ended before it was judged are 0, as the reward of its trajectories is. */
function unjudged({ settings }: AttemptContext): Pick<RolloutTrajectory, "signals"> {
  const keys = componentKeys(settings.algorithm);
  return keys.length === 0 ? {} : { signals: Object.fromEntries(keys.map((key) => [key, 0])) };
}

const NO_REWARD =
  "Cannot score the rollout: it returned nothing and no evaluator judges it. Return a reward, or set task.evaluator or reward_model.enable.";

function policyOptions({ attempt, trial, context, draws, rank }: Trial, signal: AbortSignal): PolicyOptions {
  const { settings, backend, isValidation, warn } = context;
  const sampling = settings.rollout[isValidation ? "val" : "train"];
  return {
    backend,
    draws,
    rank,
    seed: attemptSeed(attempt, trial, context),
    place: {
      step: context.step,
      task_index: attempt.task_index,
      rollout_index: attempt.rollout_index,
      trial,
      weight_version: backend.weightVersion,
      ...(attempt.isGreedy && { is_greedy: true }),
    },
    signal,
    isValidation,
    warn,
    params: { ...samplingParams(sampling, backend.model.eosTokenIds), ...(attempt.isGreedy && GREEDY) },
    maxPromptLength: settings.data.max_prompt_length,
    accumulateReasoning: settings.accumulate_reasoning,
    variables: templateVariables(settings),
  };
}

/** Variables of the chat template in every call of a run. */
export function templateVariables({ disable_thinking }: LoopSettings): Readonly<Record<string, unknown>> {
  return disable_thinking ? { enable_thinking: false } : {};
}

/** Validation repeats its random numbers, for any batch size, so that only the weights change its scores. */
function attemptSeed(attempt: Attempt, trial: number, context: AttemptContext): number {
  const { settings, isValidation, step, firstTask = 0 } = context;
  const task = firstTask + attempt.task_index;
  const at = { step: isValidation ? 0 : step, task, rollout: attempt.rollout_index, trial };
  return STREAM_SEEDS.attempt(settings.training.seed, at);
}

function failureMessage(attempt: Attempt, error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return `Cannot finish the rollout ${episodeId(attempt)}: ${message.replace(/\.$/, "")}. With rllm.workflow.raise_on_error=false it is counted and left out.`;
}
