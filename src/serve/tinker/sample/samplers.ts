/** The clients that sample: their policies, and their requests. */

import type { SampledSequence } from "../../../engine/contract/backend.ts";
import type { Engine } from "../../../engine/contract/engine.ts";
import type { BaseModels } from "../base_models.ts";
import type { Future, Futures, QueueState } from "../protocol/futures.ts";
import { Refusal, type RequestOutcome, requestFailure } from "../protocol/outcome.ts";
import { MOST_SAMPLES, type PromptRequest, requestSeed, requestsOf } from "../protocol/prompt_request.ts";
import { promptTargets } from "../protocol/prompt_targets.ts";
import { encodeSamples } from "../protocol/results.ts";
import type { Scheduler } from "../scheduler.ts";
import { askedBefore, remember, type TinkerClientSession, type TinkerSessions } from "../sessions.ts";
import type { HandOvers } from "../stability/hand_over.ts";
import { recordedOf } from "../stability/recorded_sequences.ts";
import type { Stability } from "../stability/stability.ts";
import type { PromptScoring, SampleJob } from "./batch.ts";
import type { PolicyQueue, SampledPolicies } from "./policies.ts";

export interface Sampler extends PolicyQueue {
  readonly id: string;
  readonly session: string;
  readonly modelPath?: string | undefined;
  /** Its requests by number, as long as their results are kept. */
  readonly asked: Map<string, SampleFutures & { readonly print: string }>;
}

type NewlySampled = PolicyQueue & Pick<Sampler, "id"> & { readonly modelPath?: string | undefined };

/** A request for a sampler, by its number in the session. */
export interface NewSampler {
  readonly session: string;
  readonly number: number;
  readonly baseModel?: string | undefined;
  readonly modelPath?: string | undefined;
  /** Identifies the request's content. */
  readonly print: string;
}

/** The future of a request to sample, and the id of each sample. */
export interface SampleFutures {
  readonly future: Future;
  readonly sequenceIds: readonly string[];
}

export interface NumberedSample {
  readonly number?: bigint | undefined;
  readonly print: string;
  readonly request: PromptRequest;
}

export interface SamplersOptions {
  readonly futures: Futures;
  readonly policies: SampledPolicies;
  readonly scheduler: Scheduler;
  readonly sessions: TinkerSessions;
  readonly models: BaseModels;
  readonly stability: Stability;
  readonly handOvers: HandOvers;
  readonly limits: {
    readonly samplers: number;
    readonly queuedSamples: number;
    readonly queuedBySession: number;
  };
}

/** Requests that a session may have waiting even if others fill the queue. */
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

  /** The sampler, which this marks as used. @throws Refusal 404 */
  use(id: string): Sampler {
    const sampler = this.byId.get(id);
    if (!sampler)
      throw new Refusal(
        404,
        `Cannot find the sampler ${id.slice(0, 100)}: its session has ended, newer samplers replaced it, or the server was restarted. Create a new sampling client.`,
      );
    markUsed(id, this.options.sessions.find(sampler.session));
    return sampler;
  }

  /** A sampler on the base model or on a saved path. @throws Refusal for an unknown model or path. */
  create(of: NewSampler): Sampler {
    const session = this.options.sessions.find(of.session);
    const id = `${session.id}:sample:${of.number}`;
    const key = `sampler ${of.number}`;
    askedBefore(session, { key, print: of.print });
    const existing = this.byId.get(id);
    const sampler = existing ?? this.add({ id, modelPath: of.modelPath, ...this.queueOf(of) }, session);
    remember(session, key, { print: of.print });
    return sampler;
  }

  /** Adds a sampler to a session and drops the session's least recently used one if it has too many. */
  add({ id, modelPath, source, queue, model }: NewlySampled, session: TinkerClientSession): Sampler {
    const sampler = { id, modelPath, source, queue, model, session: session.id, asked: new Map() };
    this.byId.set(id, sampler);
    markUsed(id, session);
    const [oldest] = session.samplers;
    if (session.samplers.size > this.options.limits.samplers) {
      session.samplers.delete(oldest!);
      this.drop(oldest!);
    }
    return sampler;
  }

  drop(id: string): void {
    this.byId.delete(id);
  }

  private queueOf({ baseModel, modelPath }: Pick<NewSampler, "baseModel" | "modelPath">): PolicyQueue {
    const { policies, models } = this.options;
    if (modelPath !== undefined) return policies.saved(modelPath);
    if (baseModel === undefined)
      throw new Refusal(422, "Cannot create a sampler: the request needs model_path or base_model.");
    const model = models.find(baseModel);
    if (model) return policies.base(model);
    throw new Refusal(400, `Cannot sample from ${JSON.stringify(baseModel)}: ${models.otherOnes()}`);
  }

  /**
   * Queues a request. A repeated number gives the same future, as long as its result is kept.
   * @throws Refusal 400 for a number that belongs to another request, 429 if too many requests wait.
   */
  sample(sampler: Sampler, of: NumberedSample): SampleFutures {
    const key = of.number?.toString();
    const asked = key === undefined ? undefined : sampler.asked.get(key);
    if (asked && asked.print !== of.print)
      throw new Refusal(
        400,
        `Cannot sample: seq_id ${key} belongs to another request. Give each request its own number.`,
      );
    if (asked) return asked;
    this.refuseFull(sampler);
    const future = this.options.futures.open({
      session: sampler.session,
      state: () => this.stateOf(sampler),
      dropped: () => {
        if (key !== undefined) sampler.asked.delete(key);
      },
    });
    // A larger count is refused later, when the request is checked.
    const count = Math.min(of.request.count, MOST_SAMPLES);
    const sequenceIds = Array.from({ length: count }, (_, i) => `${future.id}:${i}`);
    if (key !== undefined) sampler.asked.set(key, { future, sequenceIds, print: of.print });
    this.start(sampler, { future, sequenceIds }, of.request);
    return { future, sequenceIds };
  }

  private refuseFull({ session }: Sampler): void {
    const { policies, limits } = this.options;
    const [queued, queuedHere] = [policies.queued, policies.queuedBy(session)];
    const isFull = queued >= limits.queuedSamples && queuedHere >= Math.min(ALWAYS_QUEUED, limits.queuedSamples);
    if (!isFull && queuedHere < limits.queuedBySession) return;
    throw new Refusal(
      429,
      `Cannot accept the request: ${queuedHere} requests of the session and ${queued} in total already wait. Try again later.`,
    );
  }

  private stateOf({ queue }: Sampler): QueueState {
    const { current } = this.options.scheduler;
    const doing = current === undefined || current === queue ? "" : ` while ${current.name} has the device`;
    return { queue_state: "active", queue_state_reason: `${queue.length} requests wait${doing}` };
  }

  private start(sampler: Sampler, samples: SampleFutures, request: PromptRequest): void {
    const { queue, session } = sampler;
    const { future } = samples;
    try {
      const job = this.jobOf(samples, { request, sampler });
      this.cancellable.set(future.id, () => {
        if (queue.cancel(job)) job.failed(new Refusal(400, "The request was cancelled."));
      });
      queue.push(job);
      this.options.scheduler.wake(queue, session);
    } catch (error) {
      this.options.futures.settle(future, requestFailure(error));
    }
  }

  /** Cancels a request that has not begun. */
  cancel(futureId: string): void {
    this.cancellable.get(futureId)?.();
  }

  /** Keeps what was sampled, here and at the server that trains the weights. @returns when that one has it */
  private record(
    { future, sequenceIds }: SampleFutures,
    of: { request: PromptRequest; sequences: readonly SampledSequence[]; trainedAt: TrainedAt | undefined },
  ): Promise<void> | undefined {
    const { prompt, temperature } = of.request;
    const { session } = future;
    const { sessions, stability, handOvers } = this.options;
    // Of a session that ended meanwhile nobody can train.
    if (!sessions.get(session)) return undefined;
    const sequences = recordedOf({ sequenceIds, prompt, temperature, sequences: of.sequences });
    stability.recorded.keep(sequences, { session });
    return of.trainedAt && handOvers.send(of.trainedAt.url, { path: of.trainedAt.path, sequences });
  }

  /** Returns the server that trains a sampler's weights, if that is another one. */
  private trainedAt({ modelPath: path }: Sampler): TrainedAt | undefined {
    const url = path === undefined ? undefined : this.options.handOvers.addressFor(path);
    return path !== undefined && url !== undefined ? { url, path } : undefined;
  }

  private jobOf(samples: SampleFutures, of: { request: PromptRequest; sampler: Sampler }): SampleJob {
    const { future } = samples;
    const { source: policy } = of.sampler;
    const { engine } = of.sampler.model;
    const request = { ...of.request, seed: requestSeed(of.request) };
    const trainedAt = request.recordsStability ? this.trainedAt(of.sampler) : undefined;
    const end = (outcome: RequestOutcome) => {
      this.cancellable.delete(future.id);
      this.options.futures.settle(future, outcome);
    };
    return {
      owner: future.session,
      policy,
      prompt: request.prompt,
      requests: requestsOf(request, engine),
      scores: scoringOf(request, engine),
      done: (result) => {
        const { sequences } = result;
        const handed = request.recordsStability ? this.record(samples, { request, sequences, trainedAt }) : undefined;
        const answer = { kind: "proto", bytes: encodeSamples(request, result) } as const;
        if (!handed) return end(answer);
        handed.then(
          () => end(answer),
          (error: unknown) => end(requestFailure(error)),
        );
      },
      failed: (error) => end(requestFailure(error)),
    };
  }
}

/** A server and the path of the weights that it trains. */
interface TrainedAt {
  readonly url: string;
  readonly path: string;
}

type Seeded = PromptRequest & { readonly seed: number };

/** Returns the scoring of the prompt; undefined where there is none. */
function scoringOf(request: Seeded, { vocabSize }: Engine): PromptScoring | undefined {
  const { prompt, promptLogprobs: scoresPrompt, topkPromptLogprobs: topk, targetPromptLogprobs: tensor } = request;
  const targets = tensor && promptTargets(tensor, { promptLength: prompt.length, vocabSize });
  const { promptAltTokens: k, temperature, seed } = request;
  const draws = k > 0 ? { k, temperature, seed } : undefined;
  return scoresPrompt || topk > 0 || targets || draws ? { own: scoresPrompt, topk, targets, draws } : undefined;
}

/** Moves a sampler to the end of its session's list, which is in the order of use. */
function markUsed(id: string, session: TinkerClientSession): void {
  session.samplers.delete(id);
  session.samplers.add(id);
}
