/** A model's name, and the weights that it stands for now: replaced while it serves, without a request that notices. */
import type { SampledSequence, SampleRequest, TokenListener } from "../../engine/contract/backend.ts";
import type { Engine, EnginePolicy } from "../../engine/contract/engine.ts";
import { DeviceLostError } from "../../leaves/errors.ts";
import type { JobPolicy, SampleJob } from "../tinker/sample/batch.ts";
import type { BatchCost } from "../tinker/sample/batch_cost.ts";
import { SamplingQueue } from "../tinker/sample/sampling_queue.ts";
import type { Scheduler } from "../tinker/scheduler.ts";
import type { ServingFigures } from "./figures.ts";

/** Source of a model's weights. */
export interface WeightsSource {
  /** Folder of an adapter on the engine's base, or of a whole model of the same shape. Absent: the engine's base. */
  readonly dir?: string | undefined;
  /** Optimiser steps in the weights. */
  readonly weightVersion: number;
}

/** Parts that the models of one engine share. */
export interface ServedModelContext {
  readonly engine: Engine;
  readonly scheduler: Scheduler;
  readonly batchCost: BatchCost;
  readonly figures: ServingFigures;
  /** Aborts what runs; requests get its reason. */
  readonly signal: AbortSignal;
}

/** Owner of a request, and when it ends early. */
export interface DrawCall {
  /** Requests of one owner wait in line; owners take turns. */
  readonly owner: string;
  /** The caller went away: the request leaves the queue, or ends with its next token. */
  readonly signal?: AbortSignal | undefined;
}

/** Weights, open as long as they are the newest or requests use them. */
interface Version {
  readonly source: WeightsSource;
  readonly queue: SamplingQueue;
  readonly served: JobPolicy;
  policy: EnginePolicy | undefined;
  /** Requests that are not done. */
  users: number;
}

export class ServedModel {
  readonly name: string;
  private readonly context: ServedModelContext;
  private version: Version;
  /** Replaced, and still used. */
  private readonly retired = new Set<Version>();

  constructor(name: string, { source, context }: { source: WeightsSource; context: ServedModelContext }) {
    this.name = name;
    this.context = context;
    this.version = this.versionOf(source);
  }

  /** Version of the weights that the next request gets. */
  get weightVersion(): number {
    return this.version.source.weightVersion;
  }

  get source(): WeightsSource {
    return this.version.source;
  }

  /** Requests that have not begun. */
  get waiting(): number {
    return this.versions.reduce((sum, { queue }) => sum + queue.length, 0);
  }

  /** Requests that are not done, the waiting ones included. */
  get pending(): number {
    return this.versions.reduce((sum, { users }) => sum + users, 0);
  }

  private get versions(): readonly Version[] {
    return [this.version, ...this.retired];
  }

  private versionOf(source: WeightsSource): Version {
    const { engine, scheduler, batchCost, figures, signal } = this.context;
    const queue: SamplingQueue = new SamplingQueue(`${this.name} of step ${source.weightVersion}`, {
      onBatch: (batch) => figures.batch(batch),
      batchCost,
      signal,
      // A batch that others join never ends under load: it closes as soon as anything else needs the device.
      mayJoin: () => !scheduler.waitsBesides(queue) && engine.isLost !== true,
    });
    const served = { name: queue.name, open: () => this.open(version), close() {} };
    const version: Version = { source, queue, served, policy: undefined, users: 0 };
    return version;
  }

  private async open(version: Version): Promise<EnginePolicy> {
    // After a loss of the device the base model may have failed to load.
    if (!version.policy) await this.context.engine.load?.();
    version.policy ??= await this.context.engine.openPolicy(version.source.dir);
    return version.policy;
  }

  /** Opens the newest weights now, so that a folder that cannot be read fails here and not in a request. */
  async prepare(): Promise<void> {
    await this.context.scheduler.first(() => this.open(this.version));
  }

  /**
   * New requests use other weights from now on; those that wait or run finish on theirs.
   * @throws ConfigError for a folder that cannot be opened: the model then keeps its weights.
   */
  async replace(source: WeightsSource): Promise<void> {
    const next = this.versionOf(source);
    await this.context.scheduler.first(() => this.open(next));
    const before = this.version;
    this.version = next;
    this.retired.add(before);
    this.releaseUnused(before);
  }

  private releaseUnused(version: Version): void {
    if (version.users > 0 || !this.retired.delete(version)) return;
    // After the batch that runs: an engine does one thing at a time.
    void this.context.scheduler.first(async () => version.policy?.release());
  }

  /**
   * Samples one sequence. Where the device is lost meanwhile, it is drawn again after the device is open: the same seed and
   * weights give the same tokens, and `onTokens` hears each once.
   * @throws the call's signal's reason, the serving's when it stops, and what the engine throws
   */
  async draw(request: SampleRequest, call: DrawCall): Promise<SampledSequence> {
    const { version } = this;
    version.users++;
    const heard = new Heard(request.onTokens, this.context.figures);
    try {
      const drawn = await this.drawOnce(version, { request, call, onTokens: heard.listener() }).catch((error) => {
        if (!(error instanceof DeviceLostError) || call.signal?.aborted) throw error;
        return this.drawOnce(version, { request, call, onTokens: heard.listener() });
      });
      heard.rest(drawn);
      if (drawn.constrained) this.context.figures.noteConstrained(drawn.constrained);
      if (drawn.speculated) this.context.figures.noteSpeculated(drawn.speculated);
      return { ...drawn, weight_version: version.source.weightVersion };
    } finally {
      version.users--;
      this.releaseUnused(version);
    }
  }

  private drawOnce(
    { queue, served }: Version,
    { request, call, onTokens }: { request: SampleRequest; call: DrawCall; onTokens: TokenListener },
  ): Promise<SampledSequence> {
    const { owner, signal } = call;
    return new Promise((resolve, reject) => {
      const ends = (tokens: readonly number[]) => signal?.aborted === true || request.ends?.(tokens) === true;
      const leave = () => {
        if (queue.cancel(job)) reject(signal?.reason);
      };
      const settle = (then: () => void) => {
        signal?.removeEventListener("abort", leave);
        if (signal?.aborted) reject(signal.reason);
        else then();
      };
      const job: SampleJob = {
        owner,
        policy: served,
        prompt: request.prompt_ids,
        requests: [{ ...request, ends, signal, onTokens }],
        done: ({ sequences: [sequence] }) => settle(() => resolve(sequence!)),
        failed: (error) => settle(() => reject(error)),
      };
      if (signal?.aborted) return reject(signal.reason);
      signal?.addEventListener("abort", leave, { once: true });
      queue.push(job);
      this.context.scheduler.wake(queue, owner);
    });
  }

  /** The device is lost: weights are opened again at their next use. */
  lose(): void {
    for (const version of this.versions) {
      version.policy?.release();
      version.policy = undefined;
    }
  }

  /** Fails the requests that have not begun. */
  clear(reason: unknown): void {
    for (const job of this.versions.flatMap(({ queue }) => queue.clear())) job.failed(reason);
  }

  release(): void {
    for (const { policy } of this.versions) policy?.release();
  }
}

/** Passes new tokens on, each once, whatever is drawn again; and counts them. */
class Heard {
  private readonly onTokens: TokenListener | undefined;
  private readonly figures: ServingFigures;
  private count = 0;

  constructor(onTokens: TokenListener | undefined, figures: ServingFigures) {
    this.onTokens = onTokens;
    this.figures = figures;
  }

  /** Returns the listener of one drawing, from its first token on. */
  listener(): TokenListener {
    let seen = 0;
    return (tokens, logprobs, top) => {
      const unseen = Math.max(0, Math.min(this.count - seen, tokens.length));
      seen += tokens.length;
      this.pass(tokens.slice(unseen), logprobs.slice(unseen), top?.slice(unseen));
    };
  }

  /** Reports the tokens that an engine did not report while it drew. */
  rest({ tokens, logprobs, top_logprobs }: SampledSequence): void {
    this.pass(tokens.slice(this.count), logprobs.slice(this.count), top_logprobs?.slice(this.count));
  }

  private pass(...[tokens, logprobs, top]: Parameters<TokenListener>): void {
    if (tokens.length === 0) return;
    this.count += tokens.length;
    this.figures.sampledTokens.add(tokens.length);
    this.onTokens?.(tokens, logprobs, top);
  }
}
