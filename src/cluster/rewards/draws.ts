/** The model calls of one rollout, which the cluster samples: each waits here until its result arrives. */
import type { SampledSequence, SampleRequest } from "../../engine/contract/backend.ts";
import { Refusal } from "../../leaves/http/refusal.ts";
import type { Draws } from "../../train/loop/rollout/draw_queue.ts";
import type { CallResult, ClusterCall, ClusterParams } from "./protocol.ts";

interface WaitingCall {
  readonly request: SampleRequest;
  readonly resolve: (sequence: SampledSequence) => void;
  readonly reject: (error: unknown) => void;
}

export interface ClusterDrawsOptions {
  /** Parameters of the rollout's request; they go with each call. */
  readonly params: ClusterParams;
  /** The training step: the cluster's weights are those of its step. */
  readonly step: number;
  /** Called when there is a call to hand out. */
  readonly onAsk: () => void;
}

export class ClusterDraws implements Draws {
  failure: unknown;
  /** False once the cluster has sent tokens without log-probs. */
  hasLogprobs = true;
  private readonly options: ClusterDrawsOptions;
  /** Asked by the rollout and not answered, by number. */
  private readonly waiting = new Map<number, WaitingCall>();
  /** The calls among these that the cluster does not have yet. */
  private fresh: ClusterCall[] = [];
  private next = 0;

  constructor(options: ClusterDrawsOptions) {
    this.options = options;
  }

  get hasFresh(): boolean {
    return this.fresh.length > 0;
  }

  during<T>(rollout: () => Promise<T>): Promise<T> {
    return rollout();
  }

  draw(request: SampleRequest): Promise<SampledSequence> {
    if (this.failure !== undefined) return Promise.reject(this.failure);
    return new Promise((resolve, reject) => {
      const call = this.next++;
      this.waiting.set(call, { request, resolve, reject });
      const { prompt_ids, params } = request;
      this.fresh.push({ call, prompt_ids, sampling_params: { ...this.options.params, ...params } });
      this.options.onAsk();
    });
  }

  /** The calls that were not handed out before. */
  take(): ClusterCall[] {
    return this.fresh.splice(0);
  }

  /** @throws {Refusal} 422 for a result that belongs to no call, before any is taken */
  answer(results: readonly CallResult[]): void {
    const numbers = new Set(results.map(({ call }) => call));
    const other = results.find(({ call }) => !this.isHandedOut(call));
    if (other !== undefined || numbers.size < results.length)
      throw new Refusal(
        422,
        `Cannot take the results: ${other ? `the rollout has no open call ${other.call}` : "a call is named twice"}. Send one result for each call that was handed out.`,
      );
    for (const result of results) this.settle(result);
  }

  /** Ends every call with an error that no rollout retries. */
  stop(reason: unknown): void {
    this.failure = reason;
    this.fresh = [];
    for (const { reject } of this.waiting.values()) reject(reason);
    this.waiting.clear();
  }

  private isHandedOut(call: number): boolean {
    return this.waiting.has(call) && !this.fresh.some((each) => each.call === call);
  }

  private settle(result: CallResult): void {
    const { request, resolve, reject } = this.waiting.get(result.call)!;
    this.waiting.delete(result.call);
    if (isAborted(result)) return void reject(aborted(result));
    if (result.log_probs === null) this.hasLogprobs = false;
    resolve({
      tokens: result.token_ids,
      // An agent that reads them must not take them for probabilities of 1.
      logprobs: result.log_probs ?? result.token_ids.map(() => Number.NaN),
      finish_reason: finishOf(result, request),
      weight_version: this.options.step,
    });
  }
}

/** verl's word for a sequence that its server gave up, for new weights for instance. */
function isAborted({ stop_reason }: CallResult): boolean {
  return stop_reason === "aborted" || stop_reason === "abort";
}

function aborted({ call, token_ids }: CallResult): Error {
  return new Error(
    `Cannot continue the rollout: the cluster aborted the model call ${call} after ${token_ids.length} tokens. See the log of its inference server.`,
  );
}

function finishOf({ token_ids, stop_reason }: CallResult, { params }: SampleRequest): SampledSequence["finish_reason"] {
  if (params.stop_token_ids.includes(token_ids.at(-1) ?? -1)) return "stop";
  return stop_reason === "length" || token_ids.length >= params.max_tokens ? "length" : "stop";
}
