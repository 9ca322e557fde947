/**
 * The backend that trains on a Tinker service, or on any server that speaks its protocol (`grpu serve tinker`, SkyRL).
 * The same loop drives it; what differs is said where it does.
 */
import { z } from "zod";
import type {
  Backend,
  LossSpec,
  Metrics,
  ModelDescription,
  OptimParams,
  PackedTokens,
  SampledSequence,
  SampleRequest,
  TrainBatch,
} from "../../contract/backend.ts";
import type { Tokenizer } from "../../contract/text.ts";
import { ConfigError, RemoteError, UnsupportedError } from "../../errors.ts";
import { readRecord, writeRecord } from "./checkpoint_record.ts";
import { type ModelInfo, makeModel, type WantedModel } from "./create_model.ts";
import { checkedOutput, chunked, joinMetrics } from "./datums.ts";
import { WIRES } from "./encodings.ts";
import type { TrainingOutput } from "./protobuf_messages.ts";
import { TinkerSampling } from "./sampling.ts";
import {
  atTokens,
  datumsOf,
  hostLoss,
  NO_LOSS,
  type ServiceLoss,
  serviceLoss,
  slopesAsWeights,
} from "./service_loss.ts";
import { check, type ResultType, type SessionOptions, TinkerSession } from "./session.ts";
import { trainingMetrics } from "./training_metrics.ts";
import { Transport, type TransportOptions } from "./transport.ts";

export interface TinkerOptions extends TransportOptions, SessionOptions, WantedModel {
  /** Or what finds it for the model that the service made. Absent: rollouts on token ids alone. */
  readonly tokenizer?: Tokenizer | ((info: ModelInfo) => Promise<Tokenizer | undefined>) | undefined;
  /** Ends the opening; an open backend may still have something to save. */
  readonly openSignal?: AbortSignal;
  /** Longest sequence wanted; the service may hold less. */
  readonly contextLength?: number;
  /**
   * A checkpoint of the service's to begin from, with its optimiser: `tinker://RUN/weights/NAME`, or a training run, of
   * which it is the last. Not loaded where `load` comes first: some services load into a new model alone.
   */
  readonly startFrom?: string | undefined;
  /** Each optimiser step is sent with its gradients. */
  readonly fuse?: boolean;
  /** Samples under way at once, at most; the service may want fewer. Default 256. */
  readonly concurrency?: number;
}

const SAVED = z.object({ path: z.string() });
const SAMPLER = z.object({ sampling_session_id: z.string() });
const STEP = z.object({ metrics: z.record(z.string(), z.number()).nullish() });
const LAST = z.object({ last_checkpoint: z.object({ tinker_path: z.string() }).nullish() });
/** Asked for log-probs of a row, the service draws a token behind it, for which there must be room. */
const DRAWN_BEHIND = 1;

export class TinkerBackend implements Backend {
  readonly name = "tinker";
  readonly tokenizer: Tokenizer | undefined;
  readonly forwardBackwardAndOptimStep?: Backend["forwardBackwardAndOptimStep"];
  private readonly options: TinkerOptions;
  private readonly session: TinkerSession;
  private readonly modelId: string;
  private readonly contextLength: number;
  private readonly sampling: TinkerSampling;
  /** Numbers of the training requests, from 1: the service executes them in this order. */
  private nextSeq = 1;
  private nextSampler = 0;
  private steps = 0;
  /** Requests leave one after the other, in the order of their numbers. */
  private lastPost: Promise<unknown> = Promise.resolve();
  private sampler: { readonly version: number; readonly id: Promise<string> } | undefined;
  private published: { readonly version: number; readonly id: Promise<string> } | undefined;
  private reference: Promise<string> | undefined;
  private saved: string | undefined;
  /** That the weights are those to begin with. */
  private begun: Promise<void> | undefined;

  private constructor(
    options: TinkerOptions,
    of: { session: TinkerSession; modelId: string; contextLength: number; tokenizer?: Tokenizer | undefined },
  ) {
    this.options = options;
    this.session = of.session;
    this.modelId = of.modelId;
    this.contextLength = of.contextLength;
    this.tokenizer = of.tokenizer;
    this.sampling = new TinkerSampling({ ...of, concurrency: options.concurrency });
    if (options.fuse) this.forwardBackwardAndOptimStep = (calls, params) => this.stepAtOnce(calls, params);
  }

  /**
   * Opens a session and makes a training client on the service.
   * @throws {RemoteError} for a service that cannot be reached or refuses.
   */
  static async open(options: TinkerOptions): Promise<TinkerBackend> {
    const transport = new Transport(options);
    transport.stop = options.openSignal;
    const session = await TinkerSession.open(transport, options);
    try {
      const { modelId, baseModel, longest, info } = await makeModel(session, options);
      const { tokenizer: given } = options;
      const tokenizer = typeof given === "function" ? await given(info) : given;
      const contextLength = Math.min(
        options.contextLength ?? Number.POSITIVE_INFINITY,
        longest - DRAWN_BEHIND,
      );
      transport.stop = undefined;
      return new TinkerBackend({ ...options, baseModel }, { session, modelId, contextLength, tokenizer });
    } catch (error) {
      session.close();
      throw error;
    }
  }

  get model(): ModelDescription {
    const { tokenizer, contextLength, options } = this;
    return {
      name: options.baseModel,
      vocabSize: tokenizer?.vocabSize ?? 0,
      contextLength,
      eosTokenIds: tokenizer?.eosTokenIds ?? [],
      // The service tells neither.
      parameters: 0,
      trainableParameters: 0,
    };
  }

  get weightVersion(): number {
    return this.steps;
  }

  // --- sampling

  async sample(
    requests: readonly SampleRequest[],
    { signal, weights }: { readonly signal?: AbortSignal; readonly weights?: "current" | "published" } = {},
  ): Promise<SampledSequence[]> {
    const published = weights === "published" ? this.published : undefined;
    const version = published?.version ?? this.steps;
    return this.withAccount(async () => {
      const samplerId = await (published?.id ?? this.currentSampler(version));
      return this.sampling.draw(requests, { samplerId, version, signal });
    });
  }

  async publishWeights(): Promise<void> {
    const version = this.steps;
    const id = this.currentSampler(version);
    this.published = { version, id };
    await this.withAccount(() => id);
  }

  /** The weights of this moment, held still on the service; made when the first request after a step needs them. */
  private currentSampler(version: number): Promise<string> {
    if (this.sampler?.version !== version) {
      const number = this.nextSampler++;
      const made = this.train("SaveWeightsForSampler", "/api/v1/save_weights_for_sampler", {
        sampling_session_seq_id: number,
        type: "save_weights_for_sampler",
      });
      const id = made.then(
        async (collect) =>
          check("save_weights_for_sampler", { reply: await collect(), shape: SAMPLER }).sampling_session_id,
      );
      this.sampler = { version, id };
      // A failed one is made anew by the next that asks.
      id.catch(() => {
        if (this.sampler?.id === id) this.sampler = undefined;
      });
    }
    return (this.sampler as { id: Promise<string> }).id;
  }

  // --- log-probs

  /**
   * At temperature 1, without entropies. The reference is the base model: of an adapter, the policy before training.
   * @throws {UnsupportedError} for another temperature.
   */
  async logprobs(
    rows: PackedTokens,
    { policy, temperature }: { readonly policy: "current" | "reference"; readonly temperature: number },
  ): Promise<{ logprobs: Float32Array }> {
    if (temperature !== 1)
      throw new UnsupportedError(
        `Cannot compute log-probs at temperature ${temperature} as the service has them at 1: set rllm.rollout.train.temperature=1`,
        { part: "tinker", capability: "temperature" },
      );
    return this.withAccount(async () => ({
      logprobs: policy === "current" ? await this.forward(rows) : await this.referenceLogprobs(rows),
    }));
  }

  private async forward(rows: PackedTokens): Promise<Float32Array> {
    const inputs = { weights: new Float32Array(rows.tokens.length) };
    const collect = await this.submitPass(rows, { ...NO_LOSS, inputs, forwardOnly: true });
    return (await collect()).logprobs;
  }

  private async referenceLogprobs(rows: PackedTokens): Promise<Float32Array> {
    this.reference ??= this.openReference();
    return this.sampling.score(rows, await this.reference);
  }

  private async openReference(): Promise<string> {
    const body = {
      session_id: this.session.id,
      sampling_session_seq_id: this.nextSampler++,
      base_model: this.options.baseModel,
      type: "create_sampling_session",
    };
    const { sampling_session_id } = await this.session.ask("/api/v1/create_sampling_session", {
      body,
      shape: SAMPLER,
    });
    return sampling_session_id;
  }

  // --- training

  /** Metrics: the loss and its own figures, taken here from the log-probs; `train/loss/sum` is the service's word. */
  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<Metrics> {
    return this.withAccount(async () => (await this.beginPass(batch, loss))());
  }

  optimStep(params: OptimParams): Promise<Metrics> {
    return this.withAccount(async () => (await this.beginStep(params))());
  }

  private stepAtOnce(
    calls: readonly { readonly batch: TrainBatch; readonly loss: LossSpec }[],
    params: OptimParams,
  ): Promise<Metrics[]> {
    return this.withAccount(async () => {
      const collects: (() => Promise<Metrics>)[] = [];
      for (const { batch, loss } of calls) collects.push(await this.beginPass(batch, loss));
      collects.push(await this.beginStep(params));
      return Promise.all(collects.map((collect) => collect()));
    });
  }

  private async beginPass(batch: TrainBatch, given: LossSpec): Promise<() => Promise<Metrics>> {
    const native = serviceLoss(batch, given);
    if (native) {
      const collect = await this.submitPass(batch, { ...native, forwardOnly: false });
      return async () => {
        const { logprobs, metrics } = await collect();
        return trainingMetrics(batch, { loss: hostLoss(batch, given, logprobs), logprobs, metrics });
      };
    }
    const logprobs = await this.forward(batch);
    const loss = hostLoss(batch, given, logprobs);
    const inputs = { weights: slopesAsWeights(loss) };
    const collect = await this.submitPass(batch, { ...NO_LOSS, inputs, forwardOnly: false });
    return async () => {
      await collect();
      return trainingMetrics(batch, { loss, logprobs, metrics: {} });
    };
  }

  private async beginStep(params: OptimParams): Promise<() => Promise<Metrics>> {
    const collect = await this.train("OptimStep", "/api/v1/optim_step", {
      adam_params: { ...params },
      type: "optim_step",
    });
    return async () => {
      const { metrics } = check("optim_step", { reply: await collect(), shape: STEP });
      this.steps++;
      const own = Object.entries(metrics ?? {}).map(([name, value]) => [
        name === "grad_norm" ? "actor/grad_norm" : `optim/${name}`,
        value,
      ]);
      return { ...Object.fromEntries(own), "actor/lr": params.learning_rate };
    };
  }

  /** Sends a pass in chunks, in the order of the rows; what it returns waits for the results. */
  private async submitPass(
    rows: PackedTokens,
    { lossFn, config, inputs, forwardOnly }: ServiceLoss & { readonly forwardOnly: boolean },
  ): Promise<() => Promise<{ logprobs: Float32Array; metrics: Metrics }>> {
    const datums = datumsOf(rows, inputs);
    const type = forwardOnly ? "Forward" : "ForwardBackward";
    const wire = WIRES[this.session.wire];
    const collects: (() => Promise<TrainingOutput>)[] = [];
    for (const data of chunked(datums, this.session.flags)) {
      const requestId = await this.inOrder((seqId) => {
        const request = { modelId: this.modelId, seqId, data, lossFn, config, forwardOnly };
        const { path, body } = wire.forwardBackward(request);
        return this.session.submit(path, { body });
      });
      collects.push(async () => {
        const reply = await this.session.result(requestId, { type });
        return checkedOutput(wire.trainingOutput(reply), data);
      });
    }
    return async () => {
      const outputs: TrainingOutput[] = [];
      for (const collect of collects) outputs.push(await collect());
      const logprobs = atTokens(
        outputs.flatMap((output) => output.logprobs),
        rows,
      );
      return { logprobs, metrics: joinMetrics(outputs) };
    };
  }

  /** Sends a training request; what it returns waits for the result. */
  private async train(type: ResultType, path: string, body: object) {
    const requestId = await this.inOrder((seq_id) =>
      this.session.submit(path, { body: { model_id: this.modelId, seq_id, ...body } }),
    );
    return () => this.session.result(requestId, { type });
  }

  private inOrder<T>(post: (seqId: number) => Promise<T>): Promise<T> {
    const posted = this.lastPost.then(() => post(this.nextSeq++));
    this.lastPost = posted.catch(() => {});
    return posted;
  }

  // --- checkpoints

  /**
   * Saves on the service, as training state and as weights to sample from, under the number of optimiser steps; the
   * folder is told where (`tinker.json`).
   */
  async save(dir: string): Promise<void> {
    const name = `step_${this.steps}`;
    const paths = await this.withAccount(async () => {
      const weights = await this.train("SaveWeights", "/api/v1/save_weights", {
        path: name,
        overwrite: true,
        type: "save_weights",
      });
      const sampler = await this.train("SaveWeightsForSampler", "/api/v1/save_weights_for_sampler", {
        path: `${name}-${this.nextSeq}`,
        type: "save_weights_for_sampler",
      });
      return {
        weights: check("save_weights", { reply: await weights(), shape: SAVED }).path,
        sampler_weights: check("save_weights_for_sampler", { reply: await sampler(), shape: SAVED }).path,
      };
    });
    const { baseModel: base_model } = this.options;
    const record = { model_id: this.modelId, base_model, ...paths, weight_version: this.steps };
    await writeRecord(dir, record);
    this.saved = paths.weights;
  }

  /** Goes on from what {@link save} wrote: weights and optimiser, from where the service keeps them. */
  async load(dir: string): Promise<void> {
    const { weights, weight_version } = await readRecord(dir);
    this.begun = Promise.resolve();
    await this.withAccount(() => this.loadWeights(weights));
    this.steps = weight_version;
  }

  /** @throws {ConfigError} for a run without a checkpoint. */
  private async begin(from: string): Promise<void> {
    await this.loadWeights(from.startsWith("tinker://") ? from : await this.lastCheckpoint(from));
  }

  private async loadWeights(path: string): Promise<void> {
    const loaded = await this.train("LoadWeights", "/api/v1/load_weights", {
      path,
      optimizer: true,
      type: "load_weights",
    });
    await loaded();
    this.saved = path;
    this.sampler = undefined;
  }

  private async lastCheckpoint(run: string): Promise<string> {
    const path = `/api/v1/training_runs/${encodeURIComponent(run)}`;
    const { last_checkpoint } = await this.session.get(path, LAST);
    if (last_checkpoint) return last_checkpoint.tinker_path;
    throw new ConfigError(`Cannot go on from the training run ${run} as it has no checkpoint`, {
      path: "training.resume_from_tinker_id",
    });
  }

  close(): void {
    this.session.close();
  }

  /** Begins where the run is to begin, and says in an error of the service what of the run is safe. */
  private async withAccount<T>(work: () => Promise<T>): Promise<T> {
    const { startFrom } = this.options;
    try {
      this.begun ??= startFrom ? this.begin(startFrom) : Promise.resolve();
      await this.begun;
      return await work();
    } catch (error) {
      if (!(error instanceof RemoteError)) throw error;
      const account = this.saved
        ? `The last checkpoint is ${this.saved}: the run goes on from there with training.resume_mode=auto.`
        : "No checkpoint had been saved.";
      const { status, retryable } = error;
      throw new RemoteError(`${error.message} ${account}`, { status, retryable });
    }
  }
}
