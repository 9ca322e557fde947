/**
 * Models that are sampled by many callers at once: names for one base model and its adapters, over one engine. Requests of
 * all callers run in one batch for each model, which new ones join; callers take turns.
 */
import { ApiError } from "../../chat/request.ts";
import { type TextThread, TextWork } from "../../chat/text_work.ts";
import type { SampledSequence, SampleRequest, SamplingParams } from "../../engine/contract/backend.ts";
import type { Engine } from "../../engine/contract/engine.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { BatchCost } from "../tinker/sample/batch_cost.ts";
import { Scheduler } from "../tinker/scheduler.ts";
import { ServingFigures } from "./figures.ts";
import { type DrawCall, ServedModel, type WeightsSource } from "./served_model.ts";

export type { DrawCall, WeightsSource } from "./served_model.ts";

/** Values for what a request leaves open. */
export type RequestDefaults = Pick<SamplingParams, "max_tokens" | "temperature" | "top_p" | "top_k">;

export interface ServingOptions {
  readonly engine: Engine;
  readonly tokenizer: Tokenizer;
  /** Renders and encodes long prompts; closed with the serving. Default: the event loop does, and all others wait. */
  readonly thread?: TextThread | undefined;
  /** Models by name; the first is the default. */
  readonly models: Readonly<Record<string, WeightsSource>>;
  /** Further names, each with the name of the model that it stands for. */
  readonly aliases?: Readonly<Record<string, string>> | undefined;
  readonly defaults: RequestDefaults;
  /** Requests that may wait, of all callers. Default 4096. */
  readonly mostWaiting?: number | undefined;
  /** Takes one line for the operator. */
  readonly log?: ((line: string) => void) | undefined;
}

const MOST_WAITING = 4096;

/** Models over one engine, sampled by many callers; see {@link openServing}. */
export class Serving {
  readonly engine: Engine;
  readonly tokenizer: Tokenizer;
  /** Prompts become tokens here. */
  readonly texts: TextWork;
  readonly defaults: RequestDefaults;
  readonly figures = new ServingFigures();
  readonly scheduler = new Scheduler();
  private readonly served: ReadonlyMap<string, ServedModel>;
  private readonly aliases: ReadonlyMap<string, string>;
  private readonly mostWaiting: number;
  private readonly log: (line: string) => void;
  private readonly thread: TextThread | undefined;
  private readonly stopping = new AbortController();
  /** Requests that are not done, by owner. */
  private readonly owners = new Map<string, number>();
  private isClosing = false;

  /** @throws ConfigError without a model. */
  constructor(options: ServingOptions) {
    this.engine = options.engine;
    this.tokenizer = options.tokenizer;
    this.thread = options.thread;
    this.texts = new TextWork({
      tokenizer: options.tokenizer,
      thread: options.thread,
      contextLength: options.engine.contextLength,
      tooLong: (letters, most) => this.refused(tooLong(letters, { most, contextLength: this.engine.contextLength })),
    });
    this.defaults = options.defaults;
    this.mostWaiting = options.mostWaiting ?? MOST_WAITING;
    this.log = options.log ?? (() => {});
    const { signal } = this.stopping;
    const { engine, scheduler, figures } = this;
    const context = { engine, scheduler, figures, signal, batchCost: new BatchCost() };
    this.served = new Map(
      Object.entries(options.models).map(([name, source]) => [name, new ServedModel(name, { source, context })]),
    );
    this.aliases = new Map(Object.entries(options.aliases ?? {}));
    if (this.served.size === 0) throw new ConfigError("Cannot serve: no model is given.");
    scheduler.prepare = () => (engine.isLost ? this.reopen() : undefined);
  }

  get models(): readonly ServedModel[] {
    return [...this.served.values()];
  }

  /** Names in requests, aliases last. */
  get names(): readonly string[] {
    return [...this.served.keys(), ...this.aliases.keys()];
  }

  /** The model of that name or alias; of no name, the first. @returns undefined for an unknown name */
  model(name?: string): ServedModel | undefined {
    return name === undefined ? this.models[0] : this.served.get(this.aliases.get(name) ?? name);
  }

  /** Opens the weights of every model. @throws ConfigError for a folder that cannot be opened. */
  async open(): Promise<void> {
    for (const model of this.models) await model.prepare();
  }

  /** Requests that have not begun. */
  get waiting(): number {
    return this.models.reduce((sum, { waiting }) => sum + waiting, 0);
  }

  /** Requests that are not done. */
  get pending(): number {
    return this.models.reduce((sum, { pending }) => sum + pending, 0);
  }

  /** Callers with requests that are not done. */
  get active(): number {
    return this.owners.size;
  }

  /**
   * Parameters of a request: what it leaves open has the model's values, `max_tokens` is cut to the room in the context, and
   * the model's end tokens always end a reply.
   * @throws {ApiError} 400 for a prompt that fills the context
   */
  paramsFor(prompt_ids: readonly number[], params: Partial<SamplingParams>): SamplingParams {
    const { contextLength, eosTokenIds } = this.engine;
    const room = contextLength - prompt_ids.length;
    if (room < 1)
      throw this.refused(
        new ApiError(
          `Cannot answer: the prompt has ${prompt_ids.length} tokens, and the model's context holds ${contextLength}, the reply included. Shorten the prompt.`,
          { code: "context_length_exceeded", param: "messages" },
        ),
      );
    const stop_token_ids = [...new Set([...eosTokenIds, ...(params.stop_token_ids ?? [])])];
    const defined = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined));
    const merged = { ...this.defaults, ...defined, stop_token_ids };
    return { ...merged, max_tokens: Math.min(merged.max_tokens, room) };
  }

  /**
   * Samples one sequence.
   * @throws {ApiError} 400 for an empty prompt or a token outside the vocabulary, 429 when too many requests wait, 503 while stopping; the call's signal's reason
   */
  async draw(
    model: ServedModel,
    { request, call }: { request: SampleRequest; call: DrawCall },
  ): Promise<SampledSequence> {
    this.refuse();
    this.checkPrompt(request.prompt_ids);
    const { figures } = this;
    const started = performance.now();
    let isFirst = true;
    const onTokens: SampleRequest["onTokens"] = (...sampled) => {
      if (isFirst) figures.firstTokenSeconds.observe((performance.now() - started) / 1000);
      isFirst = false;
      request.onTokens?.(...sampled);
    };
    this.owners.set(call.owner, (this.owners.get(call.owner) ?? 0) + 1);
    try {
      const drawn = await model.draw({ ...request, onTokens, isLive: request.onTokens !== undefined }, call);
      figures.requests.add(1);
      figures.promptTokens.add(request.prompt_ids.length);
      figures.requestSeconds.observe((performance.now() - started) / 1000);
      return drawn;
    } catch (error) {
      figures.failed(call.signal?.aborted ? "cancelled" : "failed");
      throw error;
    } finally {
      this.leave(call.owner);
    }
  }

  private refuse(): void {
    if (this.isClosing) throw this.refused(stopping("Cannot answer: the server is stopping."));
    if (this.waiting < this.mostWaiting) return;
    throw this.refused(
      new ApiError(`Cannot answer: ${this.waiting} requests wait already. Try again later.`, {
        status: 429,
        type: "rate_limit_error",
        code: "queue_full",
      }),
    );
  }

  /** Before the request shares a batch with those of other callers. */
  private checkPrompt(ids: readonly number[]): void {
    const { vocabSize } = this.engine;
    if (ids.length === 0)
      throw this.refused(
        new ApiError("Cannot answer: the prompt is empty. Send at least one token.", { param: "prompt" }),
      );
    const outside = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
    if (outside === undefined) return;
    throw this.refused(
      new ApiError(
        `Cannot answer: token ids must lie in [0, ${vocabSize}) (${outside}). Encode the prompt with the model's tokenizer.`,
        { param: "prompt" },
      ),
    );
  }

  private refused(error: ApiError): ApiError {
    this.figures.failed("refused");
    return error;
  }

  private leave(owner: string): void {
    const rest = (this.owners.get(owner) ?? 1) - 1;
    if (rest > 0) return void this.owners.set(owner, rest);
    this.owners.delete(owner);
    this.scheduler.forget(owner);
  }

  /** After the loss of the device. Never rejects. */
  private async reopen(): Promise<void> {
    this.log("the GPU device was lost; it is opened again");
    try {
      for (const model of this.models) model.lose();
      await this.engine.reopen?.();
      this.log("the GPU device is open again; requests that ran are sampled again");
    } catch (error) {
      this.log(`could not open the GPU device again: ${(error as Error).message}`);
    }
  }

  /**
   * Refuses new requests and lets those that run finish. After `graceMs`, what is left is aborted. Never rejects.
   * @returns the number of requests that were aborted
   */
  async stop({ graceMs }: { graceMs: number }): Promise<number> {
    this.isClosing = true;
    const reason = stopping("Cannot finish the reply: the server is stopping.");
    const timer = setTimeout(() => {
      this.stopping.abort(reason);
      for (const model of this.models) model.clear(reason);
    }, graceMs);
    const left = () => (this.stopping.signal.aborted ? 0 : this.pending);
    let aborted = 0;
    this.stopping.signal.addEventListener("abort", () => {
      aborted = this.pending;
    });
    while (left() > 0) await new Promise((resolve) => setTimeout(resolve, 20));
    clearTimeout(timer);
    await this.scheduler.idle();
    return aborted;
  }

  /** Frees the device. Requests must have ended. */
  close(): void {
    for (const model of this.models) model.release();
    this.thread?.close();
    this.engine.close();
  }
}

function tooLong(letters: number, { most, contextLength }: { most: number; contextLength: number }): ApiError {
  return new ApiError(
    `Cannot answer: the prompt has ${letters} characters, and the ${contextLength} tokens of the model's context hold ${most} at most. Shorten the prompt.`,
    { code: "context_length_exceeded", param: "messages" },
  );
}

function stopping(message: string): ApiError {
  return new ApiError(message, { status: 503, type: "server_error", code: "stopping" });
}
