/**
 * The backend that trains on a Tinker service, or on a server that speaks its protocol (`grpu serve tinker`, SkyRL). The
 * same loop drives it as the local backend.
 */
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
} from "../../../engine/contract/backend.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { ConfigError, RemoteError, UnsupportedError } from "../../../leaves/errors.ts";
import { SampledRecords } from "../stable/sampled_records.ts";
import { atPlaces, isStable, notRecording } from "../stable/stable_rows.ts";
import { readTinkerCheckpoint, writeTinkerCheckpoint } from "./checkpoint_record.ts";
import { createRemoteModel, type ModelInfo, type WantedModel } from "./create_model.ts";
import { TinkerSampling } from "./sampling.ts";
import { SamplingServers } from "./sampling_servers.ts";
import { hostLoss, hostPart, refuseUnsupported, serviceLoss, slopesAsWeights } from "./service_loss.ts";
import { TinkerSession, type TinkerSessionOptions } from "./session.ts";
import { stableLoss } from "./stable_loss.ts";
import { type Collect, type SamplingClientKind, TrainingClient } from "./training_client.ts";
import { trainingMetrics } from "./training_metrics.ts";
import { Transport, type TransportOptions } from "./transport.ts";

/** Address, key, model and limits of a {@link TinkerBackend}. */
export interface TinkerOptions extends TransportOptions, TinkerSessionOptions, WantedModel {
  /** Or a function that finds it for the service's model. Absent: rollouts work on token ids alone. */
  readonly tokenizer?: Tokenizer | ((info: ModelInfo) => Promise<Tokenizer | undefined>) | undefined;
  /** Aborts the opening; an open backend may still have something to save. */
  readonly openSignal?: AbortSignal | undefined;
  /** Longest sequence wanted; the service may allow less. */
  readonly contextLength?: number | undefined;
  /**
   * The checkpoint on the service to start from, with its optimiser: `tinker://RUN/weights/NAME`, or a training run for
   * its last checkpoint. Loaded by the first call other than `load`, because some services load only into a new model.
   */
  readonly startFrom?: string | undefined;
  /** Send each optimiser step together with its gradients. */
  readonly fuse?: boolean | undefined;
  /** The most sampling requests in flight; the service may allow fewer. Default 256. */
  readonly concurrency?: number | undefined;
  /** Further servers that sample, on the same model and with the same key. They copy saved weights from the first. */
  readonly samplingUrls?: readonly string[] | undefined;
  /**
   * Weights of the samplers: fixed, or those that an `inflight` save changes under the requests that are on their way. The version of such a sample is
   * the oldest that can have drawn one of its tokens, because a service promises these weights or newer ones. One server only. Default `snapshot`.
   */
  readonly samplingClientKind?: SamplingClientKind | undefined;
  /** Has the service record what it samples, for the loss `stable_reinforce`. */
  readonly recordStabilityInfo?: boolean | undefined;
}

/** To compute log-probs of a row, the service also samples one token after it, which needs room. */
const SAMPLED_AFTER_ROW = 1;

/** How long the weights stay that several servers sample from. */
const SAMPLED_TTL_SECONDS = 3600;

/** A sampling session on the service, or with several servers a path to sample from, by the version of its weights. */
interface VersionedSampler {
  readonly version: number;
  readonly id: Promise<string>;
}

interface OpenedBackend {
  readonly session: TinkerSession;
  readonly modelId: string;
  readonly contextLength: number;
  readonly takesTemperature: boolean;
  readonly tokenizer?: Tokenizer | undefined;
}

/** Trains and samples on a service that speaks Tinker's protocol. {@link TinkerBackend.open} connects. */
export class TinkerBackend implements Backend {
  readonly name = "tinker";
  readonly tokenizer: Tokenizer | undefined;
  readonly forwardBackwardAndOptimStep?: Backend["forwardBackwardAndOptimStep"];
  private readonly options: TinkerOptions;
  private readonly session: TinkerSession;
  private readonly client: TrainingClient;
  private readonly contextLength: number;
  /** Whether the service trains on log-probs at other temperatures than 1. */
  readonly takesTemperature: boolean;
  private readonly sampling: TinkerSampling;
  /** Records of what the service samples. */
  private readonly records: SampledRecords | undefined;
  /** Servers that sample, where there are several. */
  private readonly servers: SamplingServers | undefined;
  private steps = 0;
  private sampler: VersionedSampler | undefined;
  private published: VersionedSampler | undefined;
  private reference: Promise<string> | undefined;
  /** Path of the latest checkpoint that was saved or loaded. */
  private checkpoint: string | undefined;
  /** Resolves when the weights to start from are loaded. */
  private started: Promise<void> | undefined;

  private constructor(options: TinkerOptions, of: OpenedBackend) {
    this.options = options;
    this.session = of.session;
    this.client = new TrainingClient(of.session, of.modelId);
    this.contextLength = of.contextLength;
    this.takesTemperature = of.takesTemperature;
    this.tokenizer = of.tokenizer;
    this.records = options.recordStabilityInfo ? new SampledRecords() : undefined;
    this.sampling = new TinkerSampling({ ...of, concurrency: options.concurrency, records: this.records });
    const { samplingUrls: urls = [], concurrency } = options;
    if (urls.length > 0)
      this.servers = new SamplingServers({
        first: of.session,
        transport: options,
        sessions: options,
        urls,
        contextLength: of.contextLength,
        concurrency,
        records: this.records,
      });
    if (options.fuse) this.forwardBackwardAndOptimStep = (calls, params) => this.fusedStep(calls, params);
  }

  /**
   * Opens a session and creates a training client on the service.
   * @throws {RemoteError} for a service that cannot be reached or refuses; ConfigError for `recordStabilityInfo` over JSON, and for
   * inflight samplers with several servers.
   */
  static async open(options: TinkerOptions): Promise<TinkerBackend> {
    if (options.recordStabilityInfo) checkRecording(options);
    checkSamplers(options);
    const transport = new Transport(options);
    transport.stop = options.openSignal;
    const session = await TinkerSession.open(transport, options);
    try {
      const { modelId, baseModel, longest, info, takesTemperature } = await createRemoteModel(session, options);
      const { tokenizer: tokenizerOption } = options;
      const tokenizer = typeof tokenizerOption === "function" ? await tokenizerOption(info) : tokenizerOption;
      const contextLength = Math.min(options.contextLength ?? Number.POSITIVE_INFINITY, longest - SAMPLED_AFTER_ROW);
      transport.stop = undefined;
      const opened = { session, modelId, contextLength, takesTemperature, tokenizer };
      return new TinkerBackend({ ...options, baseModel }, opened);
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
      // The service reports neither count.
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
    { signal, weights }: Parameters<Backend["sample"]>[1] = {},
  ): Promise<SampledSequence[]> {
    const published = weights === "published" ? this.published : undefined;
    const version = published?.version ?? this.steps;
    return this.run(async () => {
      const samplerId = await (published?.id ?? this.currentSampler(version));
      if (this.servers) return this.servers.draw(requests, { path: samplerId, version, signal });
      return this.sampling.draw(requests, { samplerId, version, signal });
    });
  }

  async publishWeights(): Promise<void> {
    const version = this.steps;
    const id = this.currentSampler(version);
    this.published = { version, id };
    await this.run(() => id);
  }

  /** A sampler of the current weights, or for several servers a checkpoint, made by the first request after a step. */
  private currentSampler(version: number): Promise<string> {
    if (this.sampler?.version === version) return this.sampler.id;
    const kept = this.servers
      ? this.client.saveSamplerWeights(`sampled-${version}`, { ttlSeconds: SAMPLED_TTL_SECONDS })
      : this.client.openSampler(this.options.samplingClientKind);
    const id = kept.then((collect) => collect());
    this.sampler = { version, id };
    // After a failure the next request makes another snapshot.
    id.catch(() => {
      if (this.sampler?.id === id) this.sampler = undefined;
    });
    return id;
  }

  // --- log-probs

  /**
   * Returns log-probs, without entropies. The reference is the base model: for an adapter, the policy before training.
   * @throws {UnsupportedError} for a temperature other than 1 that the service does not have, and for every other one of the reference.
   */
  async logprobs(
    rows: PackedTokens,
    { policy, temperature }: { readonly policy: "current" | "reference"; readonly temperature: number },
  ): Promise<{ logprobs: Float32Array }> {
    if (temperature !== 1 && !(this.takesTemperature && policy === "current"))
      throw new UnsupportedError(
        `Cannot compute log-probs${policy === "reference" ? " of the reference" : ""} at temperature ${temperature}: the service has them at 1. Set rllm.rollout.train.temperature=1.`,
        { part: "tinker", capability: "temperature" },
      );
    return this.run(async () => ({
      logprobs: policy === "current" ? await this.forward(rows, temperature) : await this.referenceLogprobs(rows),
    }));
  }

  private async forward(rows: PackedTokens, temperature: number): Promise<Float32Array> {
    const inputs = { weights: new Float32Array(rows.tokens.length) };
    const collect = await this.client.pass(rows, { ...hostPart(temperature), inputs, forwardOnly: true });
    return (await collect()).logprobs;
  }

  private async referenceLogprobs(rows: PackedTokens): Promise<Float32Array> {
    this.reference ??= this.client.openBaseSampler(this.options.baseModel);
    return this.sampling.score(rows, await this.reference);
  }

  // --- training

  /** The loss and its metrics are computed here from the log-probs; `train/loss/sum` is the service's value. */
  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<Metrics> {
    return this.run(async () => (await this.beginPass(batch, loss))());
  }

  optimStep(params: OptimParams): Promise<Metrics> {
    return this.run(async () => (await this.beginStep(params))());
  }

  private fusedStep(
    calls: readonly { readonly batch: TrainBatch; readonly loss: LossSpec }[],
    params: OptimParams,
  ): Promise<Metrics[]> {
    return this.run(async () => {
      const collects: Collect<Metrics>[] = [];
      for (const { batch, loss } of calls) collects.push(await this.beginPass(batch, loss));
      collects.push(await this.beginStep(params));
      return Promise.all(collects.map((collect) => collect()));
    });
  }

  private async beginPass(batch: TrainBatch, spec: LossSpec): Promise<Collect<Metrics>> {
    refuseUnsupported(spec, this);
    if (isStable(spec)) return this.beginStable(batch, spec);
    const native = serviceLoss(batch, spec);
    if (native) {
      const collect = await this.client.pass(batch, { ...native, forwardOnly: false });
      return async () => {
        const { logprobs, metrics } = await collect();
        return trainingMetrics(batch, { loss: hostLoss(batch, spec, logprobs), logprobs, metrics });
      };
    }
    const logprobs = await this.forward(batch, spec.temperature);
    const loss = hostLoss(batch, spec, logprobs);
    const inputs = { weights: slopesAsWeights(loss) };
    const collect = await this.client.pass(batch, { ...hostPart(spec.temperature), inputs, forwardOnly: false });
    return async () => {
      await collect();
      return trainingMetrics(batch, { loss, logprobs, metrics: {} });
    };
  }

  /** The loss and its sum are the service's: what it takes of the sampler is not here. */
  private async beginStable(batch: TrainBatch, spec: LossSpec): Promise<Collect<Metrics>> {
    if (!this.records) throw notRecording();
    const { rows, places, loss } = stableLoss(batch, { spec, records: this.records });
    const collect = await this.client.pass(rows, { ...loss, forwardOnly: false });
    return async () => {
      const { logprobs: sent, metrics } = await collect();
      const logprobs = atPlaces(sent, { places, tokens: batch.tokens.length });
      return trainingMetrics(batch, { loss: { loss: metrics["loss:sum"] ?? 0, metrics: {} }, logprobs, metrics });
    };
  }

  private async beginStep(params: OptimParams): Promise<Collect<Metrics>> {
    const collect = await this.client.optimStep(params);
    return async () => {
      const metrics = await collect();
      this.steps++;
      const named = Object.entries(metrics).map(([name, value]) => [
        name === "grad_norm" ? "actor/grad_norm" : `optim/${name}`,
        value,
      ]);
      return { ...Object.fromEntries(named), "actor/lr": params.learning_rate };
    };
  }

  // --- checkpoints

  /**
   * Saves on the service, as training state and as weights to sample from, under the number of optimiser steps. The
   * folder gets a record of the paths (`tinker.json`).
   */
  async save(dir: string): Promise<void> {
    const name = `step_${this.steps}`;
    const [weights, sampler_weights] = await this.run(async () => {
      const saved = await this.client.saveWeights(name);
      const samplerSaved = await this.client.saveSamplerWeights(name);
      return [await saved(), await samplerSaved()] as const;
    });
    await writeTinkerCheckpoint(dir, {
      model_id: this.client.modelId,
      base_model: this.options.baseModel,
      weights,
      sampler_weights,
      weight_version: this.steps,
    });
    this.checkpoint = weights;
  }

  /** Loads weights and optimiser from the checkpoint that {@link save} recorded in the folder. */
  async load(dir: string): Promise<void> {
    const { weights, weight_version } = await readTinkerCheckpoint(dir);
    this.started = Promise.resolve();
    await this.run(() => this.loadWeights(weights));
    this.steps = weight_version;
  }

  private async start(): Promise<void> {
    const { startFrom } = this.options;
    if (startFrom === undefined || startFrom === "") return;
    await this.loadWeights(startFrom.startsWith("tinker://") ? startFrom : await this.client.lastCheckpoint(startFrom));
  }

  private async loadWeights(path: string): Promise<void> {
    await this.client.loadWeights(path);
    this.checkpoint = path;
    this.sampler = undefined;
  }

  close(): void {
    this.servers?.close();
    this.session.close();
  }

  /** Runs work on the weights to start from. Errors of the service name the checkpoint to resume from. */
  private async run<T>(work: () => Promise<T>): Promise<T> {
    try {
      this.started ??= this.start();
      await this.started;
      return await work();
    } catch (error) {
      if (!(error instanceof RemoteError)) throw error;
      const { message, status, retryable } = error;
      const advice = this.checkpoint
        ? `The last checkpoint is ${this.checkpoint}: resume from it with training.resume_mode=auto.`
        : "No checkpoint has been saved.";
      throw new RemoteError(`${message} ${advice}`, { status, retryable });
    }
  }
}

function checkSamplers({ samplingClientKind, samplingUrls = [] }: TinkerOptions): void {
  if (samplingClientKind === "inflight" && samplingUrls.length > 0)
    throw new ConfigError(
      `Cannot sample with inflight weights on ${samplingUrls.length + 1} servers: the further ones sample saved weights. Name one server, or set tinker_sampling_client_kind=snapshot.`,
      { path: "tinker_sampling_client_kind" },
    );
}

function checkRecording({ wire }: TinkerOptions): void {
  if (wire === "json")
    throw new ConfigError(
      "Cannot train with stable_reinforce over JSON: the protocol's JSON has no provenance of tokens. Set tinker_wire=protobuf.",
      { path: "tinker_wire" },
    );
}
