/** The service's training client: numbered requests, sent one after the other in the order of their numbers. */
import { z } from "zod";
import type { Metrics, OptimParams, PackedTokens } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { atTokens, chunked, datumsOf } from "./datums.ts";
import { ENCODINGS } from "./encodings.ts";
import { checkReply, type HttpReply } from "./reply.ts";
import type { ResultType } from "./results.ts";
import type { ServiceLoss } from "./service_loss.ts";
import type { TinkerSession } from "./session.ts";
import { checkedOutput, joinOutputMetrics, type TrainingReply } from "./training_output.ts";

/** Waits for the result of a request that has been sent. */
export type Collect<T> = () => Promise<T>;

export interface PassResult {
  /** [T] over the tokens of the batch, 0 at first tokens. */
  readonly logprobs: Float32Array;
  readonly metrics: Metrics;
}

/** Tinker's name of which weights a sampling client has: fixed ones, or those that all of this kind share. */
export type SamplingClientKind = "snapshot" | "inflight";

const SAVED = z.object({ path: z.string() });
const SAMPLER = z.object({ sampling_session_id: z.string() });
const STEP = z.object({ metrics: z.record(z.string(), z.number()).nullish() });
const RUN = z.object({ last_checkpoint: z.object({ tinker_path: z.string() }).nullish() });

/** Every method returns when its request has been accepted; the result is collected later. */
export class TrainingClient {
  readonly modelId: string;
  private readonly session: TinkerSession;
  /** Number of the next request, from 1; the service executes the requests in this order. */
  private nextSeq = 1;
  private nextSampler = 0;
  private lastPost: Promise<unknown> = Promise.resolve();

  constructor(session: TinkerSession, modelId: string) {
    this.session = session;
    this.modelId = modelId;
  }

  /** Sends a forward or forward_backward pass in requests of the size that the service accepts. */
  async pass(
    rows: PackedTokens,
    { lossFn, config, inputs, spans, forwardOnly }: ServiceLoss & { readonly forwardOnly: boolean },
  ): Promise<Collect<PassResult>> {
    const type = forwardOnly ? "Forward" : "ForwardBackward";
    const encoding = ENCODINGS[this.session.wire];
    const collects: Collect<TrainingReply>[] = [];
    for (const data of chunked(datumsOf(rows, { inputs, spans }), this.session.flags)) {
      const requestId = await this.inOrder((seqId) => {
        const request = { modelId: this.modelId, seqId, data, lossFn, config, forwardOnly };
        const { path, body } = encoding.forwardBackward(request);
        return this.session.submit(path, { body });
      });
      collects.push(async () => {
        const reply = await this.session.result(requestId, { type });
        return checkedOutput(encoding.trainingOutput(reply), data);
      });
    }
    return async () => {
      const outputs: TrainingReply[] = [];
      for (const collect of collects) outputs.push(await collect());
      const logprobs = outputs.flatMap((output) => output.logprobs);
      return { logprobs: atTokens(logprobs, rows), metrics: joinOutputMetrics(outputs) };
    };
  }

  /** @returns the service's metrics of the step. */
  async optimStep(params: OptimParams): Promise<Collect<Metrics>> {
    const collect = await this.send("OptimStep", "optim_step", { adam_params: { ...params } });
    return async () => checkReply("optim_step", { reply: await collect(), shape: STEP }).metrics ?? {};
  }

  /** Saves weights and optimiser under a name. @returns the checkpoint's path. */
  async saveWeights(name: string): Promise<Collect<string>> {
    const collect = await this.send("SaveWeights", "save_weights", { path: name, overwrite: true });
    return async () => checkReply("save_weights", { reply: await collect(), shape: SAVED }).path;
  }

  /** Saves weights to sample from; the request's number makes the name unique. @returns the path. */
  async saveSamplerWeights(name: string, of: { ttlSeconds?: number } = {}): Promise<Collect<string>> {
    const { ttlSeconds: ttl_seconds } = of;
    const body = { path: `${name}-${this.nextSeq}`, ...(ttl_seconds !== undefined && { ttl_seconds }) };
    const collect = await this.send("SaveWeightsForSampler", "save_weights_for_sampler", body);
    return async () => checkReply("save_weights_for_sampler", { reply: await collect(), shape: SAVED }).path;
  }

  /**
   * Keeps the current weights in the service's memory. @returns the id of a sampling session: a `snapshot` keeps these weights, and
   * those of kind `inflight` all change with each further one.
   */
  async openSampler(kind: SamplingClientKind = "snapshot"): Promise<Collect<string>> {
    const number = this.nextSampler++;
    const body = { sampling_session_seq_id: number, ...(kind === "inflight" && { kind }) };
    const collect = await this.send("SaveWeightsForSampler", "save_weights_for_sampler", body);
    return async () =>
      checkReply("save_weights_for_sampler", { reply: await collect(), shape: SAMPLER }).sampling_session_id;
  }

  /** @returns the id of a sampling session on the base model. */
  async openBaseSampler(baseModel: string): Promise<string> {
    const { sampling_session_id } = await this.session.ask("/api/v1/create_sampling_session", {
      body: {
        session_id: this.session.id,
        sampling_session_seq_id: this.nextSampler++,
        base_model: baseModel,
        type: "create_sampling_session",
      },
      shape: SAMPLER,
    });
    return sampling_session_id;
  }

  /** Loads weights and optimiser. */
  async loadWeights(path: string): Promise<void> {
    const collect = await this.send("LoadWeights", "load_weights", { path, optimizer: true });
    await collect();
  }

  /** The path of a training run's last checkpoint. @throws {ConfigError} for a run without one. */
  async lastCheckpoint(run: string): Promise<string> {
    const path = `/api/v1/training_runs/${encodeURIComponent(run)}`;
    const { last_checkpoint } = await this.session.get(path, RUN);
    if (last_checkpoint) return last_checkpoint.tinker_path;
    throw new ConfigError(`Cannot resume from the training run ${run}: it has no checkpoint.`, {
      path: "training.resume_from_tinker_id",
    });
  }

  private async send(type: ResultType, route: string, body: object): Promise<Collect<HttpReply>> {
    const requestId = await this.inOrder((seq_id) =>
      this.session.submit(`/api/v1/${route}`, {
        body: { model_id: this.modelId, seq_id, ...body, type: route },
      }),
    );
    return () => this.session.result(requestId, { type });
  }

  private inOrder<T>(post: (seqId: number) => Promise<T>): Promise<T> {
    const posted = this.lastPost.then(() => post(this.nextSeq++));
    this.lastPost = posted.catch(() => {});
    return posted;
  }
}
