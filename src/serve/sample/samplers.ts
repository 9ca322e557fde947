/** Clients that sample: what they sample from, and what they asked for. */
import type { Engine } from "../../contract/engine.ts";
import { encodeSamples } from "../protocol/forward_backward.ts";
import type { Future, Futures, QueueState } from "../protocol/futures.ts";
import { failureOf, type Outcome, Refusal } from "../protocol/outcome.ts";
import type { Scheduler } from "../scheduler.ts";
import { askedBefore, remember, type Session } from "../sessions.ts";
import type { Policies } from "./policies.ts";
import { MOST_SAMPLES, type PromptRequest, requestsOf } from "./prompt_request.ts";
import type { SampleJob, SamplingQueue } from "./sampling_queue.ts";

/** A client that samples: where from, and what it asked under which number, as long as the results are kept. */
export interface Sampler {
  readonly id: string;
  readonly session: string;
  readonly modelPath?: string | undefined;
  readonly lane: SamplingQueue;
  readonly asked: Map<string, Samples & { readonly print: string }>;
}

/** A request for a sampler, by its number in the session. */
export interface NewSampler {
  readonly session: string;
  readonly number: number;
  readonly baseModel?: string | undefined;
  readonly modelPath?: string | undefined;
  readonly print: string;
}

/** A promise of samples, and the name of each. */
export interface Samples {
  readonly future: Future;
  readonly sequenceIds: readonly string[];
}

export interface SamplersOptions {
  readonly engine: Engine;
  readonly futures: Futures;
  readonly policies: Policies;
  readonly scheduler: Scheduler;
  readonly modelNames: readonly string[];
  readonly limits: {
    readonly samplers: number;
    readonly queuedSamples: number;
    readonly queuedBySession: number;
  };
}

/** What a session may have waiting even where the queue is full of others' requests. */
export const ALWAYS_QUEUED = 16;

export class Samplers {
  private readonly options: SamplersOptions;
  private readonly byId = new Map<string, Sampler>();
  private readonly cancellable = new Map<string, () => void>();

  constructor(options: SamplersOptions) {
    this.options = options;
  }

  get size(): number {
    return this.byId.size;
  }

  values(): Iterable<Sampler> {
    return this.byId.values();
  }

  /** @throws Refusal 404 */
  find(id: string): Sampler {
    const sampler = this.byId.get(id);
    if (sampler) return sampler;
    throw new Refusal(
      404,
      `Cannot find the sampler ${id.slice(0, 100)}: its session has ended, it gave way to newer ones, or the server was restarted since. Make a new sampling client.`,
    );
  }

  /** A sampler on the base model or a saved path. @throws Refusal where there is no such model or path. */
  create(of: NewSampler, session: Session): Sampler {
    const id = `${session.id}:sample:${of.number}`;
    const key = `sampler ${of.number}`;
    askedBefore(session, { key, print: of.print });
    const known = this.byId.get(id);
    const sampler = known ?? this.add({ id, modelPath: of.modelPath, lane: this.laneOf(of) }, session);
    remember(session, key, { print: of.print });
    return sampler;
  }

  /** Adds a sampler to a session; the one it used longest ago gives way where it has too many. */
  add(of: Pick<Sampler, "id" | "modelPath" | "lane">, session: Session): Sampler {
    const sampler = { ...of, session: session.id, asked: new Map() };
    this.byId.set(of.id, sampler);
    this.used(sampler, session);
    const [oldest] = session.samplers;
    if (session.samplers.size > this.options.limits.samplers) {
      session.samplers.delete(oldest!);
      this.drop(oldest!);
    }
    return sampler;
  }

  /** Takes note that a sampler is in use. */
  used({ id }: Sampler, session: Session): void {
    session.samplers.delete(id);
    session.samplers.add(id);
  }

  drop(id: string): void {
    this.byId.delete(id);
  }

  private laneOf({
    baseModel,
    modelPath,
  }: {
    baseModel?: string | undefined;
    modelPath?: string | undefined;
  }): SamplingQueue {
    const { policies, modelNames } = this.options;
    if (modelPath !== undefined) return policies.saved(modelPath);
    if (baseModel === undefined)
      throw new Refusal(422, "Cannot sample without knowing from what: give model_path or base_model.");
    if (!modelNames.includes(baseModel))
      throw new Refusal(
        400,
        `Cannot sample from ${JSON.stringify(baseModel)} as this server has another base model: ${modelNames.join(", ")}.`,
      );
    return policies.base();
  }

  /**
   * Orders samples. The same number gives the same future again, as long as its result is kept.
   * @throws Refusal 429 where too many requests wait.
   */
  sample(
    sampler: Sampler,
    of: { number?: bigint | undefined; print: string; order: PromptRequest },
  ): Samples {
    const { futures } = this.options;
    const key = of.number?.toString();
    const known = key === undefined ? undefined : sampler.asked.get(key);
    if (known && known.print !== of.print)
      throw new Refusal(
        400,
        `Cannot sample as seq_id ${key} was used for another request: give each its own number.`,
      );
    if (known) return known;
    this.refuseFull(sampler);
    const future = futures.open({
      session: sampler.session,
      state: () => this.stateOf(sampler),
      dropped: () => {
        if (key !== undefined) sampler.asked.delete(key);
      },
    });
    // An order of more is refused when it is looked at.
    const count = Math.min(of.order.count, MOST_SAMPLES);
    const sequenceIds = Array.from({ length: count }, (_, i) => `${future.id}:${i}`);
    if (key !== undefined) sampler.asked.set(key, { future, sequenceIds, print: of.print });
    this.start(sampler, future, of.order);
    return { future, sequenceIds };
  }

  private refuseFull({ session }: Sampler): void {
    const { policies, limits } = this.options;
    const [all, own] = [policies.queued, policies.queuedBy(session)];
    const isFull = all >= limits.queuedSamples && own >= Math.min(ALWAYS_QUEUED, limits.queuedSamples);
    if (!isFull && own < limits.queuedBySession) return;
    throw new Refusal(
      429,
      `Cannot take the request: ${own} of the session's and ${all} in all wait already. Try again later.`,
    );
  }

  private stateOf({ lane }: Sampler): QueueState {
    const { current } = this.options.scheduler;
    const doing = current === undefined || current === lane ? "" : ` while ${current.name} has the device`;
    return { queue_state: "active", queue_state_reason: `${lane.length} requests wait${doing}` };
  }

  private start({ lane, session }: Sampler, future: Future, order: PromptRequest): void {
    try {
      const job = this.jobOf(future, order);
      this.cancellable.set(future.id, () => {
        if (lane.cancel(job)) job.failed(new Refusal(400, "The request was cancelled."));
      });
      lane.push(job);
      this.options.scheduler.wake(lane, session);
    } catch (error) {
      this.options.futures.settle(future, failureOf(error));
    }
  }

  /** Takes a request back that has not begun. */
  cancel(futureId: string): void {
    this.cancellable.get(futureId)?.();
  }

  private jobOf(future: Future, order: PromptRequest): SampleJob {
    const end = (outcome: Outcome) => {
      this.cancellable.delete(future.id);
      this.options.futures.settle(future, outcome);
    };
    const wantsScores = order.promptLogprobs || order.topkPromptLogprobs > 0;
    return {
      owner: future.session,
      prompt: order.prompt,
      requests: requestsOf(order, this.options.engine),
      scores: wantsScores ? { topk: order.topkPromptLogprobs } : undefined,
      done: (result) => end({ kind: "proto", bytes: encodeSamples(order, result) }),
      failed: (error) => end(failureOf(error)),
    };
  }
}
