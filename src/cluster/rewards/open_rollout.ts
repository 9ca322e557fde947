/** A rollout that runs here while the cluster samples for it. */
import type { Episode, Task, TerminationReason } from "../../train/data/types.ts";
import { runAttempt } from "../../train/loop/rollout/attempt.ts";
import type { LoopSettings } from "../../train/loop/settings.ts";
import { type AttemptParts, causeOf, contextOf } from "./attempts.ts";
import { ClusterDraws } from "./draws.ts";
import type { RolloutEnd } from "./figures.ts";
import type { CallResult, ClusterParams, RolloutReply, RolloutRequest } from "./protocol.ts";
import { checkTaken, episodeRows } from "./trajectories.ts";

/** How a rollout ended, and the last reply of it. */
export interface EndedRollout {
  readonly how: RolloutEnd;
  readonly reply: RolloutReply;
  /** Response tokens beyond the cluster's limit. */
  readonly cutTokens: number;
}

/** How long calls that an agent makes in parallel are gathered, ms. */
const LINGER_MS = 5;

/** Thrown into a rollout that nobody waits for any more. */
export class GivenUp extends Error {
  override readonly name = "GivenUp";
  readonly how: RolloutEnd;
  constructor(how: RolloutEnd, why: string) {
    super(`The rollout was given up: ${why}.`);
    this.how = how;
  }
}

export interface OpenRolloutOptions {
  readonly request: RolloutRequest;
  readonly task: Task;
  readonly parts: AttemptParts;
  readonly holdMs: number;
}

export class OpenRollout {
  /** Number of the next request. */
  next = 0;
  /** Requests that are being answered. */
  running = 0;
  /** When the last request was answered, ms. */
  heardAt = performance.now();
  /** Resolves when it has ended; never rejects. */
  readonly ended: Promise<EndedRollout>;
  private readonly options: OpenRolloutOptions;
  private readonly stopping = new AbortController();
  private readonly draws: ClusterDraws;
  private end: EndedRollout | undefined;
  private wake = () => {};

  constructor(options: OpenRolloutOptions) {
    this.options = options;
    const { sampling_params: params, step } = options.request;
    this.draws = new ClusterDraws({ params, step, onAsk: () => this.wake() });
    this.ended = this.run();
  }

  /** `<task id>:<rollout index>`. */
  get where(): string {
    return `${this.options.task.id}:${this.options.request.rollout_index}`;
  }

  /** Also of a rollout that has ended: its agent may still wait. @throws {Refusal} 422 for results that belong to no call */
  take(results: readonly CallResult[]): void {
    this.draws.answer(results);
  }

  /** New calls, the end, or after a while neither. */
  async reply(): Promise<RolloutReply> {
    if (!this.end && !this.draws.hasFresh) await this.change(this.options.holdMs);
    if (!this.end && this.draws.hasFresh) await pause(LINGER_MS);
    if (this.end) return this.end.reply;
    const calls = this.draws.take();
    return calls.length > 0 ? { action: "generate", calls } : { action: "wait" };
  }

  giveUp(reason: GivenUp): void {
    this.stopping.abort(reason);
    this.draws.stop(reason);
  }

  private change(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private async run(): Promise<EndedRollout> {
    this.end = await this.attempt().then(
      (episode) => this.done(episode),
      (error: unknown) => failed(error),
    );
    this.wake();
    return this.end;
  }

  private attempt(): Promise<Episode> {
    const { request, task, parts } = this.options;
    const { step, validate: isValidation, rollout_index } = request;
    const rolloutParts = { ...parts, settings: settingsFor(parts.settings, request) };
    const context = contextOf(rolloutParts, { step, isValidation, signal: this.stopping.signal });
    const attempt = { task, task_index: request.task.index, rollout_index };
    return runAttempt(attempt, { draws: this.draws, rank: 0, context });
  }

  private done(episode: Episode): EndedRollout {
    const { request, parts } = this.options;
    try {
      const { trajectories, cutTokens } = episodeRows(episode, {
        settings: parts.settings,
        hasLogprobs: this.draws.hasLogprobs,
        maxResponseLength: request.max_response_length ?? Number.POSITIVE_INFINITY,
      });
      if (trajectories.length === 0) return empty(episode);
      checkTaken(trajectories, request.takes);
      parts.onEpisode?.(episode, { step: request.step, isValidation: request.validate });
      return { how: "done", reply: { action: "done", trajectories }, cutTokens };
    } catch (error) {
      return failed(error);
    }
  }
}

function failed(error: unknown): EndedRollout {
  const how = error instanceof GivenUp ? error.how : "failed";
  return errorEnd(how, { message: causeOf(error), termination_reason: "error" });
}

/** Ended before the model replied; a cluster cannot train on it. */
function empty({ id, termination_reason }: Episode): EndedRollout {
  const message = `The rollout ${id} ended without a token to train on (${termination_reason}).`;
  return errorEnd("empty", { message, termination_reason });
}

function errorEnd(
  how: RolloutEnd,
  error: { readonly message: string; readonly termination_reason: TerminationReason },
): EndedRollout {
  return { how, reply: { action: "error", ...error }, cutTokens: 0 };
}

/** The run's settings with the cluster's sampling, within its lengths. */
function settingsFor(settings: LoopSettings, request: RolloutRequest): LoopSettings {
  const { max_prompt_length, max_response_length, sampling_params, validate } = request;
  const split = validate ? "val" : "train";
  const splitSampling = settings.rollout[split];
  const sampling = {
    ...splitSampling,
    ...numbersOf(sampling_params),
    max_tokens: Math.min(splitSampling.max_tokens, max_response_length ?? splitSampling.max_tokens),
  };
  const longest = Math.min(settings.data.max_prompt_length, max_prompt_length ?? Number.POSITIVE_INFINITY);
  return {
    ...settings,
    data: { ...settings.data, max_prompt_length: longest },
    rollout: { ...settings.rollout, [split]: sampling },
  };
}

/** Log-probs depend on them, so that agents learn of the cluster's own. */
function numbersOf(params: ClusterParams): Readonly<Record<string, number>> {
  const names = ["temperature", "top_p", "top_k"] as const;
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = params[name];
      return typeof value === "number" ? [[name, value] as const] : [];
    }),
  );
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
