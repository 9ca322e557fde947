/** Samples and log-probs from a sampling session of the service, whose weights do not change. */
import type { PackedTokens, SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";
import { RemoteError } from "../../../leaves/errors.ts";
import type { SampledRecords } from "../stable/sampled_records.ts";
import { ENCODINGS } from "./encodings.ts";
import { inParallel } from "./parallel.ts";
import type { SampleResponse } from "./protobuf_messages.ts";
import { ResultGone } from "./results.ts";
import type { TinkerSession } from "./session.ts";

const CONCURRENCY = 256;
/** How often a request is sent again after the service lost its result. */
const MOST_RESENDS = 5;

export interface SamplingOptions {
  readonly session: TinkerSession;
  readonly contextLength: number;
  /** The most requests in flight; the service may allow fewer. Default 256. */
  readonly concurrency?: number | undefined;
  /** Present where the samples are to be trained on with `stable_reinforce`: the service records them. */
  readonly records?: SampledRecords | undefined;
}

export class TinkerSampling {
  private readonly options: SamplingOptions;
  private next = 0;

  constructor(options: SamplingOptions) {
    this.options = options;
  }

  /** Samples every request; results are in the order of the requests. @param at.samplerId a sampling session */
  draw(
    requests: readonly SampleRequest[],
    at: { samplerId: string; version: number; signal?: AbortSignal | undefined },
  ): Promise<SampledSequence[]> {
    const { samplerId, version, signal } = at;
    return inParallel(requests, {
      most: this.mostInFlight,
      signal,
      map: (request, inner) => this.drawOne(request, { samplerId, version, signal: inner }),
    });
  }

  /** The log-prob of every token, [T], 0 at first tokens. Sends a request per row. */
  async score(
    { tokens, offsets }: PackedTokens,
    samplerId: string,
    { signal: outer }: { signal?: AbortSignal | undefined } = {},
  ): Promise<Float32Array> {
    const ranges = Array.from({ length: offsets.length - 1 }, (_, i) => [offsets[i], offsets[i + 1]]);
    const logprobs = new Float32Array(tokens.length);
    await inParallel(ranges, {
      most: this.mostInFlight,
      signal: outer,
      map: async ([first, end], signal) => {
        if (end! - first! < 2) return;
        const prompt = [...tokens.subarray(first, end)];
        const asked = { prompt, sampling_params: { max_tokens: 1 }, prompt_logprobs: true };
        const { promptLogprobs } = await this.ask(asked, { samplerId, signal });
        if (promptLogprobs?.length !== prompt.length)
          throw new RemoteError("Cannot use the service's result: it has no log-probs of the prompt.", {
            retryable: false,
          });
        logprobs.set(promptLogprobs.subarray(1), first! + 1);
      },
    });
    return logprobs;
  }

  private get mostInFlight(): number {
    const { concurrency = CONCURRENCY, session } = this.options;
    return Math.min(concurrency, session.flags.sample_max_concurrent_requests);
  }

  private async drawOne(
    { prompt_ids, params, seed, mayTrain = true }: SampleRequest,
    at: { samplerId: string; version: number; signal?: AbortSignal },
  ): Promise<SampledSequence> {
    const room = this.options.contextLength - prompt_ids.length;
    const sampling_params = {
      max_tokens: Math.max(1, Math.min(params.max_tokens, room)),
      temperature: params.temperature,
      top_p: params.top_p,
      top_k: params.top_k > 0 ? params.top_k : -1,
      stop: [...params.stop_token_ids],
      // SkyRL stores seeds in 31 bits.
      seed: this.options.session.wire === "json" ? seed % 2 ** 31 : seed,
    };
    const records = mayTrain && isRecordable(params) ? this.options.records : undefined;
    const asked = { prompt: prompt_ids, sampling_params, ...(records && { record_stability_info: true as const }) };
    const { sequences, sequenceIds } = await this.ask(asked, at);
    if (sequences.length !== 1)
      throw new RemoteError(
        `Cannot use the service's result: it has ${sequences.length} samples for a request of one.`,
        {
          retryable: false,
        },
      );
    const { tokens, logprobs, stopReason } = sequences[0]!;
    const { temperature } = params;
    records?.add({ sequenceId: idOf(sequenceIds), prompt: prompt_ids, tokens, logprobs, temperature });
    return { tokens, logprobs, finish_reason: stopReason, weight_version: at.version };
  }

  /** Sends the request again, under the same number, if the service has lost its result. */
  private async ask(
    of: { prompt: readonly number[]; sampling_params: object; prompt_logprobs?: boolean; record_stability_info?: true },
    { samplerId, signal }: { samplerId: string; signal?: AbortSignal },
  ): Promise<SampleResponse & { readonly sequenceIds: readonly string[] }> {
    const { session } = this.options;
    const body = {
      sampling_session_id: samplerId,
      seq_id: this.next++,
      num_samples: 1,
      prompt: { chunks: [{ type: "encoded_text", tokens: [...of.prompt] }] },
      sampling_params: of.sampling_params,
      prompt_logprobs: of.prompt_logprobs ?? false,
      topk_prompt_logprobs: 0,
      ...(of.record_stability_info && { record_stability_info: true }),
      type: "sample",
    };
    for (let resends = 0; ; resends++) {
      try {
        const headers = { "X-Tinker-Sampling-Backpressure": "1" };
        const accepted = await session.accept("/api/v1/asample", { body, headers, signal, isPaced: true });
        const result = await session.result(accepted.request_id, { type: "Sample", signal });
        return { ...ENCODINGS[session.wire].samples(result), sequenceIds: accepted.sample_sequence_ids ?? [] };
      } catch (error) {
        if (!(error instanceof ResultGone) || resends >= MOST_RESENDS) throw error;
      }
    }
  }
}

/** Services record what is drawn from the whole distribution. A greedy sample has no gradient under the loss. */
function isRecordable({ temperature, top_p, top_k }: SampleRequest["params"]): boolean {
  return temperature > 0 && top_p === 1 && top_k <= 0;
}

function idOf([id, ...more]: readonly string[]): string {
  if (id !== undefined && more.length === 0) return id;
  throw new RemoteError(
    `Cannot use the service's answer: it has ${id === undefined ? 0 : more.length + 1} sample_sequence_ids for a request of one sample, which stable_reinforce needs. Train with importance_sampling, cispo or gspo there (rllm.algorithm.loss_fn).`,
    { retryable: false },
  );
}
